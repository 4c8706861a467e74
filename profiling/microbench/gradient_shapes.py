"""Shapes of the gradient products of linear layers, which no layer calls by name."""

from __future__ import annotations

from predictor.core.costs.catalogue import catalogue
from predictor.core.costs.layer_call import LayerCall
from predictor.core.costs.operator import Shape, linear_gradients

LINEARS = ("qkv_projection", "attention_output", "ffn_up", "ffn_down", "lm_head")


def gradients(call: LayerCall) -> tuple[Shape, Shape]:
    """Return the gradient products of one of a model's linear layers, of each in turn."""
    layer = catalogue()[LINEARS[(call.sequence_length + call.micro_batch_size) % len(LINEARS)]]
    m, k, n = layer.shape_in(call)
    return linear_gradients((m, k, n))
