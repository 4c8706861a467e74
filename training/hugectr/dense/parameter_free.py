"""Layers without weights: shapes, sums, products and activations.

Source of semantics: HugeCTR, "Configuration File Setup", Dense Layers.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional

from hugectr.dense.module import DenseModule, Position
from predictor.recommender.workload import layers

Tensors = Sequence[torch.Tensor]
Outputs = tuple[torch.Tensor, ...]
# Samples that draw their dropout together: few, so that a rank draws few numbers in vain where its share ends within a
# block; many on a GPU, where every block is a launch.
DROPOUT_BLOCKS = {"cpu": 64, "cuda": 4096}


def _seed_of(*numbers: int) -> int:
    """Return a seed that any of the numbers changes; of 32 bits, since the CPU's generator takes no more."""
    return int.from_bytes(hashlib.blake2b(struct.pack(f"<{len(numbers)}q", *numbers), digest_size=4).digest())


class Add(DenseModule):
    """Sum of all inputs."""

    def forward(self, inputs: Tensors, position: Position) -> Outputs:
        """Return the sum."""
        total = inputs[0]
        for tensor in inputs[1:]:
            total = total + tensor
        return (total,)


class DotProduct(DenseModule):
    """Element-wise product of all inputs."""

    def forward(self, inputs: Tensors, position: Position) -> Outputs:
        """Return the product."""
        product = inputs[0]
        for tensor in inputs[1:]:
            product = product * tensor
        return (product,)


class Cast(DenseModule):
    """Half precision to float32 and back; without mixed precision there is nothing to convert."""

    half: torch.dtype | None = None

    def forward(self, inputs: Tensors, position: Position) -> Outputs:
        """Return the input in the other precision."""
        tensor = inputs[0]
        if self.half is None:
            return (tensor,)
        return (tensor.to(self.half if tensor.dtype is torch.float32 else torch.float32),)


class Concat(DenseModule):
    """Columns of all inputs beside each other."""

    def forward(self, inputs: Tensors, position: Position) -> Outputs:
        """Return (rows, all columns)."""
        return (torch.cat(list(inputs), dim=1),)


class Dropout(DenseModule):
    """Zeros at random while training; what stays is divided by the share that stays.

    Every block of samples of the global batch has a generator of its own, so that masks do not depend on the number of
    ranks.
    """

    def __init__(self, layer: layers.Dropout, shapes: Sequence[layers.TensorShape], weights: Any) -> None:
        """See ``DenseModule``."""
        super().__init__(layer, shapes, weights)
        self.rate = layer.rate
        self.rows = shapes[0].rows
        self.stream = 0
        self._generator: torch.Generator | None = None

    def forward(self, inputs: Tensors, position: Position) -> Outputs:
        """Return the input with zeros."""
        tensor = inputs[0]
        if not self.training or self.rate == 0.0:
            return (tensor,)
        return (tensor * self._mask(tensor, position),)

    def _mask(self, tensor: torch.Tensor, position: Position) -> torch.Tensor:
        if self._generator is None:
            self._generator = torch.Generator(tensor.device)
        size = DROPOUT_BLOCKS[tensor.device.type]
        first = position.first_sample
        end = first + tensor.shape[0] // self.rows
        begin = first // size * size
        shape = (size * self.rows, tensor.shape[1])
        blocks = []
        for start in range(begin, end, size):
            self._generator.manual_seed(_seed_of(position.seed, position.step, self.stream, start))
            blocks.append(torch.rand(shape, generator=self._generator, device=tensor.device))
        drawn = torch.cat(blocks)[(first - begin) * self.rows : (end - begin) * self.rows]
        return (drawn >= self.rate).to(tensor.dtype).mul_(1.0 / (1.0 - self.rate))


class ELU(DenseModule):
    """Exponential linear unit."""

    def __init__(self, layer: layers.ELU, shapes: Sequence[layers.TensorShape], weights: Any) -> None:
        """See ``DenseModule``."""
        super().__init__(layer, shapes, weights)
        self.alpha = layer.alpha

    def forward(self, inputs: Tensors, position: Position) -> Outputs:
        """Return x, or alpha (exp(x) - 1) below 0."""
        return (functional.elu(inputs[0], self.alpha),)


class ReLU(DenseModule):
    """Rectified linear unit."""

    def forward(self, inputs: Tensors, position: Position) -> Outputs:
        """Return max(x, 0)."""
        return (functional.relu(inputs[0]),)


class Sigmoid(DenseModule):
    """Logistic function."""

    def forward(self, inputs: Tensors, position: Position) -> Outputs:
        """Return 1 / (1 + exp(-x))."""
        return (torch.sigmoid(inputs[0]),)


class FmOrder2(DenseModule):
    """Second-order factorization machine. Source: Guo et al. 2017, arXiv:1703.04247, equation 3."""

    def __init__(self, layer: layers.FmOrder2, shapes: Sequence[layers.TensorShape], weights: Any) -> None:
        """See ``DenseModule``."""
        super().__init__(layer, shapes, weights)
        self.width = layer.out_dim

    def forward(self, inputs: Tensors, position: Position) -> Outputs:
        """Return half of (sum over slots) squared less the sum of squares: (rows, width)."""
        slots = inputs[0].reshape(inputs[0].shape[0], -1, self.width)
        total = slots.sum(dim=1)
        return (0.5 * (total * total - (slots * slots).sum(dim=1)),)


class ReduceSum(DenseModule):
    """Sum over an axis, which stays with length 1."""

    def __init__(self, layer: layers.ReduceSum, shapes: Sequence[layers.TensorShape], weights: Any) -> None:
        """See ``DenseModule``."""
        super().__init__(layer, shapes, weights)
        self.axis = layer.axis

    def forward(self, inputs: Tensors, position: Position) -> Outputs:
        """Return the sums."""
        return (inputs[0].sum(dim=self.axis, keepdim=True),)


class Reshape(DenseModule):
    """A matrix of the given columns; of an embedding only the selected slots, if any are."""

    def __init__(self, layer: layers.Reshape, shapes: Sequence[layers.TensorShape], weights: Any) -> None:
        """See ``DenseModule``."""
        super().__init__(layer, shapes, weights)
        self.selected = list(layer.selected)
        self.columns = layer.shapes(shapes)[0].columns

    def forward(self, inputs: Tensors, position: Position) -> Outputs:
        """Return a view where the layout allows."""
        tensor = inputs[0][:, self.selected, :] if self.selected else inputs[0]
        return (tensor.reshape(-1, self.columns),)


class Slice(DenseModule):
    """Ranges of columns as tensors of their own."""

    def __init__(self, layer: layers.Slice, shapes: Sequence[layers.TensorShape], weights: Any) -> None:
        """See ``DenseModule``."""
        super().__init__(layer, shapes, weights)
        self.ranges = layer.ranges

    def forward(self, inputs: Tensors, position: Position) -> Outputs:
        """Return views."""
        return tuple(inputs[0][:, start:end] for start, end in self.ranges)
