"""Second order of a factorization machine: half of the squared sum of a sample's vectors less the sum of squares."""

from predictor.core.costs.operator import Direction, Operator, Shape
from predictor.core.costs.stream_stand_ins import with_stream_stand_in
from predictor.core.costs.work import ELEMENT_BYTES, Work


def _work(shape: Shape, direction: Direction, num_multiprocessors: int) -> Work:
    """All vectors read and one written; backward the gradient of that one read and of all written. ``extras``: rows."""
    batch, slots, width = shape
    vectors = slots if direction is Direction.FORWARD else 2 * slots
    return Work(0.0, float(batch * (vectors + 1) * width * ELEMENT_BYTES), (float(batch),))


OPERATOR = with_stream_stand_in(
    Operator(
        name="fm_order2",
        dimensions=("batch", "slots", "width"),
        work=_work,
        extra_kinds=("count",),
        launches=(6, 8),
        source="Rendle 2010, doi:10.1109/ICDM.2010.127, lemma 3.1",
    )
)
