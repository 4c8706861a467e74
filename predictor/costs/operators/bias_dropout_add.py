"""Bias, dropout and residual addition behind attention and FFN."""

from predictor.costs.streams import over_elements

OPERATOR = over_elements(
    name="bias_dropout_add",
    dimensions=("tokens", "hidden"),
    passes=(
        3,
        2,
    ),  # two reads and one write; backward reads the gradient and writes the branch's; the mask's byte left out
    launches=(3, 2),
    source="Megatron-LM core/fusions/fused_bias_dropout.py; element-wise",
)
