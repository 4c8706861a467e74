"""Gradient of a linear layer's input, with the weight stored (outputs, inputs) as torch.nn.Linear has it."""

from __future__ import annotations

from microbench.call import Call, Maker
from microbench.gradient_shapes import gradients
from predictor.core.costs.layer_call import LayerCall
from predictor.core.costs.operator import Shape


def drawn(call: LayerCall) -> Shape:
    """Return the shape in a layer of a sweep."""
    return gradients(call)[0]


def build(shape: Shape, make: Maker) -> Call:
    """Return the call of shape (m, k, n): of tokens, the layer's outputs and its inputs."""
    import torch

    tokens, outputs, inputs = shape
    gradient, weight = make.constant(tokens, outputs), make.weight(outputs, inputs).detach()
    return Call(lambda: torch.mm(gradient, weight), (), "torch mm, dY · W")
