"""Predictions beside measurements: verification, published steps, calibration."""
