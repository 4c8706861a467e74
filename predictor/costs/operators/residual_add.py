"""Sum of two activations of a layer; backward is the sum of the two branches' gradients, the same kernel."""

from predictor.costs.layer_call import LayerCall
from predictor.costs.operator import Direction, Operator, Shape
from predictor.costs.work import ELEMENT_BYTES, Work, elementwise_work


def _shape(call: LayerCall) -> Shape:
    return call.tokens, call.hidden_size


def _work(shape: Shape, direction: Direction, num_multiprocessors: int) -> Work:
    """Two reads and one write per element."""
    tokens, hidden = shape
    return elementwise_work(tokens * hidden, 3 * ELEMENT_BYTES)


OPERATOR = Operator(
    name="residual_add",
    dimensions=("tokens", "hidden"),
    work=_work,
    shape=_shape,
    source="two reads and one write per element",
)
