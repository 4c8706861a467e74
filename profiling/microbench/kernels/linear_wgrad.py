"""Gradient of a linear layer's weight, stored (outputs, inputs), in the training precision."""

from __future__ import annotations

from microbench.call import Call, Maker
from microbench.gradient_shapes import gradients
from predictor.core.costs.layer_call import LayerCall
from predictor.core.costs.operator import Shape


def drawn(call: LayerCall) -> Shape:
    """Return the shape in a layer of a sweep."""
    return gradients(call)[1]


def build(shape: Shape, make: Maker) -> Call:
    """Return the call of shape (m, k, n): of the layer's inputs, tokens and its outputs."""
    import torch

    inputs, tokens, outputs = shape
    gradient, x = make.constant(tokens, outputs), make.constant(tokens, inputs)
    return Call(lambda: torch.mm(gradient.t(), x), (), "torch mm, dYᵀ · X")
