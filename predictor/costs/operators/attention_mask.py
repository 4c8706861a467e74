"""Unfused attention: write a large negative value where the mask forbids attention (masked_fill)."""

from predictor.costs.layer_call import LayerCall
from predictor.costs.operator import Direction, Operator, Shape
from predictor.costs.work import ELEMENT_BYTES, Work, elementwise_work


def _shape(call: LayerCall) -> Shape:
    return call.micro_batch_size * call.heads_per_rank, call.sequence_length


def _work(shape: Shape, direction: Direction, num_multiprocessors: int) -> Work:
    """Every score of every head is streamed."""
    batch, length = shape
    passes = 3 if direction is Direction.FORWARD else 2
    return elementwise_work(batch * length * length, passes * ELEMENT_BYTES, (float(batch * length),))


OPERATOR = Operator(
    name="attention_mask",
    dimensions=("batch", "sequence"),
    work=_work,
    shape=_shape,
    extra_kinds=("count",),
    source="masked_fill reads and writes every score",
)
