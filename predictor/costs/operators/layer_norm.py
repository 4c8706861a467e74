"""Fused LayerNorm over the hidden dimension."""

from predictor.costs.layer_call import LayerCall
from predictor.costs.operator import Direction, Operator, Shape
from predictor.costs.work import ELEMENT_BYTES, Work, elementwise_work


def _shape(call: LayerCall) -> Shape:
    return call.tokens, call.hidden_size


def _work(shape: Shape, direction: Direction, num_multiprocessors: int) -> Work:
    """Each row is read and written once; backward reads input and gradient and writes one."""
    tokens, hidden = shape
    passes = 2 if direction is Direction.FORWARD else 3
    return elementwise_work(tokens * hidden, passes * ELEMENT_BYTES, (float(tokens),))


OPERATOR = Operator(
    name="layer_norm",
    dimensions=("tokens", "hidden"),
    work=_work,
    shape=_shape,
    extra_kinds=("count",),
    launches=(1, 3),
    source="Ba et al. 2016, arXiv:1607.06450; one fused kernel per direction and one for the weight gradients",
)
