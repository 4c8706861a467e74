"""FFN down-projection."""

from microbench.linear import linear_call as build

__all__ = ["build"]
