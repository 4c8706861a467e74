"""Whole training steps on one GPU: of the predictor's own runs; checked, timed, and set beside their predictions."""
