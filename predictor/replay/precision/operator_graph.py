"""Operators of a forward pass as a graph: nodes have a precision, edges may need a cast."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple


class Precision(StrEnum):
    """In what an operator computes."""

    FP32 = "fp32"
    TF32 = "tf32"
    FP16 = "fp16"
    BF16 = "bf16"
    FP8 = "fp8"
    INT8 = "int8"

    @property
    def bytes(self) -> int:
        """Return the bytes of one element."""
        return {Precision.FP32: 4, Precision.TF32: 4, Precision.FP16: 2, Precision.BF16: 2}.get(self, 1)


class Tensor(NamedTuple):
    """What flows from one operator to the next."""

    producer: int
    consumer: int
    numel: int


@dataclass(frozen=True, slots=True)
class OperatorNode:
    """One operator of the forward pass, with its backward.

    Attributes:
        name: as traced: ``aten::linear``.
        label: unique in its graph, of module and position.
        depth: length of the longest way to it from the model's inputs.
        shapes: of its tensor inputs.
        weight_numel: elements of its weights, which are cast where it does not compute in theirs.
        output_numel: elements of its output.
        saved_numel: elements that its backward keeps.
        choices: precisions that it can compute in; one alone where it has none to choose; none: as its inputs are, the
            widest of them.
        forward: position of its call in the traced step, and of its backward operators.
        backward: likewise.
        traced: precision that it computed in as traced.
        weight_numels: elements of each of its weights, which are cast one by one; empty: it has one, or none.
    """

    name: str
    label: str
    depth: int
    shapes: tuple[tuple[int, ...], ...]
    weight_numel: int
    output_numel: int
    saved_numel: int
    choices: tuple[Precision, ...]
    forward: int = -1
    backward: tuple[int, ...] = ()
    traced: Precision = Precision.FP32
    weight_numels: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class OperatorGraph:
    """Operators in an order in which producers come first, and the tensors between them."""

    nodes: Sequence[OperatorNode]
    tensors: Sequence[Tensor]
    facts: Mapping[str, object] = field(default_factory=dict)


Plan = Mapping[str, Precision]  # by the labels of nodes; the others are as traced
