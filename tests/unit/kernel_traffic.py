"""What the kernels of one pass move and compute."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Traffic:
    """What one pass moves and computes.

    Attributes:
        size_bytes: read and written by its kernels one after the other.
        least_bytes: of tensors that were there before, read once, and of results, written once.
        flops: of its matrix products.
        kernels: how many run.
    """

    size_bytes: float
    least_bytes: float
    flops: float
    kernels: int

    def times(self, factor: float) -> Traffic:
        """The same kernels on so many times as much."""
        return Traffic(self.size_bytes * factor, self.least_bytes * factor, self.flops * factor, self.kernels)

    def __add__(self, other: Traffic) -> Traffic:
        moved = self.size_bytes + other.size_bytes, self.least_bytes + other.least_bytes
        return Traffic(*moved, self.flops + other.flops, self.kernels + other.kernels)
