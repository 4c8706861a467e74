"""Query, key and value projection."""

from microbench.call import linear_call as build

__all__ = ["build"]
