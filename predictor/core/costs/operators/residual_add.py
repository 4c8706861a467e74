"""Sum of two activations of a layer; backward is the sum of the two branches' gradients, the same kernel."""

from predictor.core.costs.layer_call import residual_stream
from predictor.core.costs.streams import over_elements

OPERATOR = over_elements(
    name="residual_add",
    dimensions=("tokens", "hidden"),
    layer_shape=residual_stream,
    passes=(3, 3),  # two reads and one write
    source="two reads and one write per element",
)
