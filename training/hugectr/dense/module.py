"""Base of all dense modules."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import nn

from predictor.recommender.workload.layers import DenseLayer, TensorShape

Sum = Callable[[torch.Tensor], torch.Tensor]


class Position(NamedTuple):
    """Where a rank's samples lie in training: what random numbers depend on, so that they are the same on any ranks.

    Attributes:
        seed: of the run.
        step: counted from 1.
        first_sample: of this rank, in the global batch.
    """

    seed: int
    step: int
    first_sample: int


class Over(NamedTuple):
    """The ranks that share a batch.

    Attributes:
        sum: a tensor's sum over ranks, which autograd sees; the identity with one rank.
    """

    num_ranks: int
    sum: Sum


ALONE = Over(1, lambda tensor: tensor)


class DenseModule(nn.Module, ABC):
    """Base of the modules: tensors in, tensors out, weights in the order of a dense model file."""

    def __init__(self, layer: DenseLayer, shapes: Sequence[TensorShape], weights: Sequence[nn.Parameter]) -> None:
        """Build a layer.

        Args:
            layer: what it is.
            shapes: of its inputs, per sample.
            weights: as ``layer.weights(shapes)`` says, float32; the module fills none.
        """
        super().__init__()
        self.weights = nn.ParameterList(weights)

    @abstractmethod
    def forward(self, inputs: Sequence[torch.Tensor], position: Position) -> tuple[torch.Tensor, ...]:
        """Return the layer's outputs."""

    def initialise(self, generator: torch.Generator) -> None:
        """Fill the weights with HugeCTR's initial values; a layer without weights has none."""
