"""RMSNorm written as single PyTorch operations (square, mean, rsqrt, two products), as GPT-NeoX runs it."""

from predictor.costs.layer_call import LayerCall
from predictor.costs.operator import Direction, Operator, Shape
from predictor.costs.work import ELEMENT_BYTES, Work, elementwise_work


def _shape(call: LayerCall) -> Shape:
    return call.tokens, call.hidden_size


def _work(shape: Shape, direction: Direction, num_multiprocessors: int) -> Work:
    """Each row is read and written at least once, and once more backward."""
    tokens, hidden = shape
    passes = 2 if direction is Direction.FORWARD else 3
    return elementwise_work(tokens * hidden, passes * ELEMENT_BYTES, (float(tokens),))


OPERATOR = Operator(
    name="rms_norm",
    dimensions=("tokens", "hidden"),
    work=_work,
    shape=_shape,
    extra_kinds=("count",),
    launches=(5, 16),
    source="Zhang and Sennrich 2019, arXiv:1910.07467; unfused",
)
