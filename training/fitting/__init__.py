"""Fit regressors to measurement tables, judge them on held-out rows and publish them."""
