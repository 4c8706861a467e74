"""Cache the orders of schedules: those of many small questions, and of large ones, some 100 MB each, the last two."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from math import prod
from typing import Any, TypeVar, cast

SMALL, LARGE = 64, 2
LARGE_SLOTS = 20_000

Build = TypeVar("Build", bound=Callable[..., object])


def cached(build: Build) -> Build:
    """Return a function that keeps its last answers; its whole numbers multiply to the slots of an answer."""
    small, large = lru_cache(maxsize=SMALL)(build), lru_cache(maxsize=LARGE)(build)

    @wraps(build)
    def answer(*question: Any) -> object:
        slots = prod(size for size in question if isinstance(size, int))
        return (large if slots > LARGE_SLOTS else small)(*question)

    return cast("Build", answer)
