"""Layers with weights, and their initial values.

Weights are float32 and are converted to the precision of the input where they are used. Source of initial values:
HugeCTR v3.0, ``get_default_initializer`` of fully_connected_layer.cu, multi_cross_layer.cu, weight_multiply_layer.cu
and batch_norm_layer.cu; ``VarianceScalingSimulator`` of data_simulator.hpp.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from hugectr.dense.module import ALONE, DenseModule, Over, Position
from predictor.recommender.workload import layers

Tensors = Sequence[torch.Tensor]
Outputs = tuple[torch.Tensor, ...]
# A normal distribution cut at two standard deviations has this standard deviation.
CUT_NORMAL_DEVIATION = 0.87962566103423978


def glorot_normal(weight: torch.Tensor, fan_in: int, fan_out: int, generator: torch.Generator) -> None:
    """Fill with a normal distribution of variance 2 / (fan_in + fan_out), cut at two standard deviations.

    Source: Glorot and Bengio 2010, equation 12, for the variance.
    """
    deviation = sqrt(2.0 / (fan_in + fan_out)) / CUT_NORMAL_DEVIATION
    nn.init.trunc_normal_(weight, 0.0, deviation, -2 * deviation, 2 * deviation, generator=generator)


def glorot_uniform(weight: torch.Tensor, fan_in: int, fan_out: int, generator: torch.Generator) -> None:
    """Fill uniformly between ± sqrt(6 / (fan_in + fan_out))."""
    limit = sqrt(6.0 / (fan_in + fan_out))
    nn.init.uniform_(weight, -limit, limit, generator=generator)


class InnerProduct(DenseModule):
    """Fully connected layer: x · kernel + bias, kernel (in, out)."""

    def forward(self, inputs: Tensors, position: Position) -> Outputs:
        """Return (rows, out)."""
        kernel, bias = self.weights
        dtype = inputs[0].dtype
        return (torch.addmm(bias.to(dtype), inputs[0], kernel.to(dtype)),)

    def initialise(self, generator: torch.Generator) -> None:
        """Fill the kernel as Glorot, the bias with a cut normal distribution of variance 1 / out."""
        kernel, bias = self.weights
        glorot_normal(kernel, kernel.shape[0], kernel.shape[1], generator)
        deviation = sqrt(1.0 / bias.shape[1])
        nn.init.trunc_normal_(bias, 0.0, deviation, -2 * deviation, 2 * deviation, generator=generator)


class FusedInnerProduct(InnerProduct):
    """Fully connected layer and ReLU."""

    def forward(self, inputs: Tensors, position: Position) -> Outputs:
        """Return (rows, out), not negative."""
        return (functional.relu_(super().forward(inputs, position)[0]),)


class MultiCross(DenseModule):
    """Cross layers: x' = x0 (x · w) + b + x; with a projection x' = x0 ⊙ (x U V + b) + x.

    Source: Wang et al. 2017, arXiv:1708.05123, equation 3; Wang et al. 2020, arXiv:2008.13535, equation 2.
    """

    def __init__(self, layer: layers.MultiCross, shapes: Sequence[layers.TensorShape], weights: Any) -> None:
        """See ``DenseModule``."""
        super().__init__(layer, shapes, weights)
        self.is_projected = layer.projection_dim > 0
        self.num_layers = layer.num_layers

    def forward(self, inputs: Tensors, position: Position) -> Outputs:
        """Return the last layer's (rows, width)."""
        first = current = inputs[0]
        weights = [weight.to(first.dtype) for weight in self.weights]
        if self.is_projected:
            for down, up, bias in zip(weights[0::3], weights[1::3], weights[2::3], strict=True):
                current = torch.addcmul(current, first, torch.addmm(bias, current @ down, up))
        else:
            for weight, bias in zip(weights[0::2], weights[1::2], strict=True):
                current = torch.addcmul(current + bias, first, current @ weight.t())
        return (current,)

    def initialise(self, generator: torch.Generator) -> None:
        """Fill weights as Glorot, uniformly, and biases with 0."""
        per_layer = len(self.weights) // self.num_layers
        for number, weight in enumerate(self.weights):
            if number % per_layer == per_layer - 1:
                nn.init.zeros_(weight)
            elif self.is_projected:
                glorot_uniform(weight, weight.shape[0], weight.shape[1], generator)
            else:
                glorot_uniform(weight, weight.shape[1], weight.shape[1], generator)


class WeightMultiply(DenseModule):
    """Each column times its vector of weights: (rows, slots) to (rows, slots · width)."""

    def forward(self, inputs: Tensors, position: Position) -> Outputs:
        """Return all products beside each other."""
        weight = self.weights[0].to(inputs[0].dtype)
        return ((inputs[0].unsqueeze(2) * weight).reshape(inputs[0].shape[0], -1),)

    def initialise(self, generator: torch.Generator) -> None:
        """Fill as Glorot, uniformly, with slots in and slots · width out."""
        slots, width = self.weights[0].shape
        glorot_uniform(self.weights[0], slots, slots * width, generator)


class BatchNorm(DenseModule):
    """Batch normalisation over the global batch.

    Statistics are taken over all ranks, where HugeCTR takes each GPU's own, so that any number of ranks trains alike.
    Running values move by ``factor`` towards the batch's mean and unbiased variance, as cuDNN's do.
    """

    over: Over = ALONE

    def __init__(self, layer: layers.BatchNorm, shapes: Sequence[layers.TensorShape], weights: Any) -> None:
        """See ``DenseModule``."""
        super().__init__(layer, shapes, weights)
        self.factor, self.eps = layer.factor, layer.eps
        device = self.weights[0].device
        self.register_buffer("mean", torch.zeros(shapes[0].columns, device=device))
        self.register_buffer("var", torch.ones(shapes[0].columns, device=device))

    def forward(self, inputs: Tensors, position: Position) -> Outputs:
        """Return (x - mean) / sqrt(var + eps) · gamma + beta."""
        values = inputs[0].float()
        mean, var = self._statistics(values) if self.training else (self.mean, self.var)
        scale = self.weights[0] * torch.rsqrt(var + self.eps)
        return (torch.addcmul(self.weights[1], values - mean, scale).to(inputs[0].dtype),)

    def initialise(self, generator: torch.Generator) -> None:
        """Fill gamma with 1 and beta with 0."""
        nn.init.ones_(self.weights[0])
        nn.init.zeros_(self.weights[1])

    def _statistics(self, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return mean and biased variance over all ranks, and move the running values."""
        count = values.shape[0] * self.over.num_ranks
        mean = self.over.sum(values.sum(dim=0)) / count
        var = self.over.sum((values - mean).square().sum(dim=0)) / count
        with torch.no_grad():
            self.mean.lerp_(mean, self.factor)
            self.var.lerp_(var * (count / max(count - 1, 1)), self.factor)
        return mean, var
