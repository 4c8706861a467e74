"""Output projection onto the vocabulary."""

from microbench.call import linear_call as build

__all__ = ["build"]
