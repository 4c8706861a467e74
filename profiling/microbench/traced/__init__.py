"""Traces of small training runs, and costs of their operators and casts in another precision on this device."""
