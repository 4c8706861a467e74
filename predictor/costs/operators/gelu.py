"""GELU on the FFN's inner activations of one rank."""

from predictor.costs.layer_call import LayerCall
from predictor.costs.operator import Direction, Operator, Shape
from predictor.costs.work import ELEMENT_BYTES, Work, elementwise_work


def _shape(call: LayerCall) -> Shape:
    return call.tokens, call.ffn_hidden_size // call.tensor_parallel_size


def _work(shape: Shape, direction: Direction, num_multiprocessors: int) -> Work:
    """One read and one write; backward also reads the gradient."""
    tokens, width = shape
    passes = 2 if direction is Direction.FORWARD else 3
    return elementwise_work(tokens * width, passes * ELEMENT_BYTES)


OPERATOR = Operator(
    name="gelu",
    dimensions=("tokens", "width"),
    work=_work,
    shape=_shape,
    source="Hendrycks and Gimpel 2016, arXiv:1606.08415; element-wise",
)
