"""SwiGLU on the FFN's inner activations of one rank: SiLU of the gate times the other half."""

from predictor.costs.layer_call import LayerCall
from predictor.costs.operator import Shape
from predictor.costs.streams import over_elements


def _shape(call: LayerCall) -> Shape:
    return call.tokens, call.ffn_hidden_size // call.tensor_parallel_size


OPERATOR = over_elements(
    name="swiglu",
    dimensions=("tokens", "width"),
    shape=_shape,
    passes=(3, 5),  # two reads and one write; backward reads the gradient too and writes two
    launches=(2, 4),
    source="Shazeer 2020, arXiv:2002.05202; element-wise, unfused",
)
