"""Sum of two activations of a layer; backward is the sum of the two branches' gradients, the same kernel."""

from predictor.costs.layer_call import LayerCall
from predictor.costs.operator import Shape
from predictor.costs.streams import over_elements


def _shape(call: LayerCall) -> Shape:
    return call.unsplit_tokens, call.hidden_size


OPERATOR = over_elements(
    name="residual_add",
    dimensions=("tokens", "hidden"),
    shape=_shape,
    passes=(3, 3),  # two reads and one write
    source="two reads and one write per element",
)
