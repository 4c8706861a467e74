"""RMSNorm written as single PyTorch operations (square, mean, rsqrt, two products), as GPT-NeoX runs it."""

from predictor.core.costs.layer_call import residual_stream
from predictor.core.costs.streams import over_elements

OPERATOR = over_elements(
    name="rms_norm",
    dimensions=("tokens", "hidden"),
    layer_shape=residual_stream,
    passes=(2, 3),  # at least: read and written; backward reads input and gradient and writes one
    rows=lambda shape: shape[0],
    launches=(5, 16),
    source="Zhang and Sennrich 2019, arXiv:1910.07467; unfused",
)
