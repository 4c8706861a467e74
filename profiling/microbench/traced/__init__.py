"""Traces of small training runs, and what their operators and casts take in another precision on this device."""
