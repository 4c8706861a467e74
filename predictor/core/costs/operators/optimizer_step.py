"""Fused Adam step over a list of fp32 tensors (parameters, gradients, two moments)."""

from predictor.core.costs.streams import ADAM_BYTES, over_parameters

OPERATOR = over_parameters(
    "optimizer_step", ADAM_BYTES, source="Kingma and Ba 2014, arXiv:1412.6980; fused multi-tensor kernel in fp32"
)
