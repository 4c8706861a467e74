"""Calibration: a few measured steps of one's own move a handful of factors of a published system."""
