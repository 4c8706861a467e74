"""Bias, dropout and residual addition behind attention and FFN."""

from predictor.costs.streams import over_elements

OPERATOR = over_elements(
    name="bias_dropout_add",
    dimensions=("tokens", "hidden"),
    # Two reads and one write; backward reads the gradient and writes the branch's. The mask's byte is left out: a seed
    # can make it again.
    passes=(3, 2),
    launches=(3, 2),
    source="Megatron-LM core/fusions/fused_bias_dropout.py; element-wise",
)
