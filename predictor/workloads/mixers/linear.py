"""A linear layer of a token mixer, and how tensor parallelism splits it."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from predictor.costs.operator import Direction
from predictor.workloads.layer_call import LayerCall
from predictor.workloads.tasks import Task, shaped_task


class Split(StrEnum):
    """How tensor-parallel ranks hold a matrix: its outputs split, its inputs split, or all of it on every rank."""

    COLUMN = "column"
    ROW = "row"
    WHOLE = "whole"


class Linear(NamedTuple):
    """One matrix of a token mixer.

    Attributes:
        name: its purpose.
        operator: of the catalogue, that times it.
        inputs, outputs: of the whole matrix.
    """

    name: str
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


def linear_tasks(linears: tuple[Linear, ...], call: LayerCall, direction: Direction) -> list[Task]:
    """Return the products with several matrices; a rank multiplies its own tokens with those that are whole on all."""
    tasks = []
    for linear in linears:
        tokens = call.unsplit_tokens if linear.split is Split.WHOLE else call.tokens
        shape = (tokens, *linear.on_rank(call.tensor_parallel_size))
        tasks.append(shaped_task(linear.operator, shape, direction)._replace(name=linear.name))
    return tasks
