"""Query, key and value projection."""

from microbench.linear import linear_call as build

__all__ = ["build"]
