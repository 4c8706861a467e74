"""GELU on the FFN's inner activations of one rank."""

from predictor.core.costs.layer_call import ffn_inner
from predictor.core.costs.streams import over_elements

OPERATOR = over_elements(
    name="gelu",
    dimensions=("tokens", "width"),
    layer_shape=ffn_inner,
    passes=(2, 3),  # read and written once; backward also reads the gradient
    source="Hendrycks and Gimpel 2016, arXiv:1606.08415; element-wise",
)
