"""Experiments' step time, memory and cost, before they run."""
