"""Attention's output projection."""

from microbench.call import linear_call as build

__all__ = ["build"]
