"""A linear layer of a token mixer, and how tensor parallelism splits it."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Split(StrEnum):
    """How tensor-parallel ranks hold a matrix: its outputs split, its inputs split, or all of it on every rank."""

    COLUMN = "column"
    ROW = "row"
    WHOLE = "whole"


class Linear(NamedTuple):
    """One matrix of a token mixer.

    Attributes:
        operator: of the catalogue, that times it.
        inputs, outputs: of the whole matrix.
    """

    operator: str
    inputs: int
    outputs: int
    split: Split

    def on_rank(self, tensor_parallel_size: int) -> tuple[int, int]:
        """Return its inputs and outputs on one rank."""
        tp = tensor_parallel_size
        if self.split is Split.COLUMN:
            return self.inputs, self.outputs // tp
        return (self.inputs // tp, self.outputs) if self.split is Split.ROW else (self.inputs, self.outputs)

    def parameters(self, tensor_parallel_size: int = 1) -> int:
        """Return its parameters on one rank, no bias counted."""
        inputs, outputs = self.on_rank(tensor_parallel_size)
        return inputs * outputs


def total(linears: tuple[Linear, ...], tensor_parallel_size: int = 1) -> int:
    """Return the parameters of several matrices on one rank."""
    return sum(linear.parameters(tensor_parallel_size) for linear in linears)
