"""Fused LayerNorm over the hidden dimension."""

from predictor.core.costs.layer_call import residual_stream
from predictor.core.costs.streams import over_elements

OPERATOR = over_elements(
    name="layer_norm",
    dimensions=("tokens", "hidden"),
    layer_shape=residual_stream,
    passes=(2, 3),  # read and written once; backward reads input and gradient and writes one
    rows=lambda shape: shape[0],
    launches=(1, 3),
    source="Ba et al. 2016, arXiv:1607.06450; one fused kernel per direction and one for the weight gradients",
)
