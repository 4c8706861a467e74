"""Predict the time of one distributed training step from published operator times, without a GPU."""

__version__ = "0.1.0"  # the same as in pyproject.toml; a test compares them
