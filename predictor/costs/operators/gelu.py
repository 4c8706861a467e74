"""GELU on the FFN's inner activations of one rank."""

from predictor.costs.layer_call import LayerCall
from predictor.costs.operator import Shape
from predictor.costs.streams import over_elements


def _shape(call: LayerCall) -> Shape:
    return call.tokens, call.ffn_width


OPERATOR = over_elements(
    name="gelu",
    dimensions=("tokens", "width"),
    shape=_shape,
    passes=(2, 3),  # read and written once; backward also reads the gradient
    source="Hendrycks and Gimpel 2016, arXiv:1606.08415; element-wise",
)
