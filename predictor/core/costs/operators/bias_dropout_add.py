"""Bias, dropout and residual addition after attention and FFN."""

from predictor.core.costs.layer_call import residual_stream
from predictor.core.costs.streams import over_elements

OPERATOR = over_elements(
    name="bias_dropout_add",
    dimensions=("tokens", "hidden"),
    layer_shape=residual_stream,
    # Two reads and one write; backward reads the gradient and writes the branch's. The mask's byte is left out, since
    # it can be recomputed from the seed.
    passes=(3, 2),
    launches=(3, 2),
    source="Megatron-LM core/fusions/fused_bias_dropout.py; element-wise",
)
