"""Small symmetric matrices in plain Python: seven factors need no numpy."""

from __future__ import annotations

from collections.abc import Sequence

Matrix = list[list[float]]


def inverse(matrix: Sequence[Sequence[float]]) -> Matrix:
    """Return the inverse of a symmetric positive definite matrix, by Gauss-Jordan elimination.

    >>> inverse([[2.0, 0.0], [0.0, 4.0]])
    [[0.5, 0.0], [0.0, 0.25]]
    """
    size = len(matrix)
    rows = [[*row, *(1.0 if i == j else 0.0 for j in range(size))] for i, row in enumerate(matrix)]
    for i in range(size):
        pivot = rows[i][i]
        rows[i] = [value / pivot for value in rows[i]]
        for j in range(size):
            if j != i and rows[j][i]:
                times = rows[j][i]
                rows[j] = [value - times * of_pivot for value, of_pivot in zip(rows[j], rows[i], strict=True)]
    return [row[size:] for row in rows]


def product(matrix: Sequence[Sequence[float]], vector: Sequence[float]) -> list[float]:
    """Return a matrix times a vector."""
    return [dot(row, vector) for row in matrix]


def dot(left: Sequence[float], right: Sequence[float]) -> float:
    """Return the inner product of two vectors."""
    return sum(a * b for a, b in zip(left, right, strict=True))
