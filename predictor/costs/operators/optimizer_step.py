"""Fused Adam step over a list of fp32 tensors (parameters, gradients, two moments)."""

from predictor.costs.streams import over_parameters

# fp32 parameter, gradient and two moments read; parameter and moments written.
BYTES_PER_PARAMETER = 28

OPERATOR = over_parameters(
    "optimizer_step",
    BYTES_PER_PARAMETER,
    source="Kingma and Ba 2014, arXiv:1412.6980; fused multi-tensor kernel in fp32",
)
