"""Lay one nested mapping over another, and find where they differ."""

from __future__ import annotations

from typing import Any


def merged(under: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Return two nested mappings as one; where both have a value, ``over`` wins."""
    both = dict(under)
    for key, value in over.items():
        below = both.get(key)
        both[key] = merged(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return both


def clashing(under: dict[str, Any], over: dict[str, Any], path: str = "") -> list[tuple[str, Any, Any]]:
    """Return key, value and new value of what two nested mappings say differently."""
    clashes: list[tuple[str, Any, Any]] = []
    for key in under.keys() & over.keys():
        old, new = under[key], over[key]
        if isinstance(old, dict) and isinstance(new, dict):
            clashes += clashing(old, new, f"{path}{key}.")
        elif old != new:
            clashes.append((f"{path}{key}", old, new))
    return sorted(clashes, key=lambda clash: clash[0])
