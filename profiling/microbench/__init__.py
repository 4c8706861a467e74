"""Measure operators and collectives on this machine, into tables with provenance."""
