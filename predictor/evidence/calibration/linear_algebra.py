"""Vectors and small matrices in plain Python: seven factors need no numpy."""

from __future__ import annotations

from collections.abc import Sequence

Matrix = list[list[float]]


def product(matrix: Sequence[Sequence[float]], vector: Sequence[float]) -> list[float]:
    """Return a matrix times a vector.

    >>> product([[2.0, 0.0], [1.0, 4.0]], [1.0, 2.0])
    [2.0, 9.0]
    """
    return [dot(row, vector) for row in matrix]


def dot(left: Sequence[float], right: Sequence[float]) -> float:
    """Return the inner product of two vectors."""
    return sum(a * b for a, b in zip(left, right, strict=True))
