"""Whole training steps of the predictor's runs on one GPU: checked, timed, and compared with their predictions."""
