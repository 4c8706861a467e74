"""A bounded memory of results that many questions share."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")

MOST = 4096  # entries; then it begins anew: a server is asked about ever other models


def remembered(memory: dict[Key, Value], key: Key, compute: Callable[[], Value]) -> Value:
    """Return the value of a key, computed at most once while it is remembered."""
    value = memory.get(key)
    if value is None:
        value = compute()
        if len(memory) >= MOST:
            memory.clear()
        memory[key] = value
    return value
