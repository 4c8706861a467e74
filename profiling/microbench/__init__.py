"""Measure operators and collectives on the machine at hand, into tables that say how they were obtained."""
