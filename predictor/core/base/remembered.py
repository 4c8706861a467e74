"""Bounded memories of results that many questions share."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import wraps
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")
Object = TypeVar("Object")

MOST = 4096  # entries; then it begins anew: a server is asked about ever other models
MOST_OBJECTS = 64


def remembered(memory: dict[Key, Value], key: Key, compute: Callable[[], Value], most: int = MOST) -> Value:
    """Return the value of a key, computed at most once while it is remembered."""
    value = memory.get(key)
    if value is None:
        value = compute()
        if len(memory) >= most:
            memory.clear()
        memory[key] = value
    return value


def per_object(compute: Callable[[Object], Value]) -> Callable[[Object], Value]:
    """Compute what follows from an immutable object once for each of the last ones, told apart by identity alone."""
    known: dict[int, tuple[Object, Value]] = {}  # with the object, whose number no other has meanwhile

    @wraps(compute)
    def of(one: Object) -> Value:
        return remembered(known, id(one), lambda: (one, compute(one)), MOST_OBJECTS)[1]

    return of
