"""Reordering of a batch's keys by feature (TorchRec's permute and bucketize), as its exchange over ranks needs.

Keys are 64-bit; every sample has a count of keys per feature.
"""

from predictor.core.costs.operator import Direction, Operator, Shape
from predictor.core.costs.stream_stand_ins import with_stream_stand_in
from predictor.core.costs.work import Work

KEY_BYTES = 8


def _work(shape: Shape, direction: Direction, num_multiprocessors: int) -> Work:
    """Every key read and written; ``extras``: features."""
    features, lookups = shape
    return Work(0.0, 2.0 * lookups * KEY_BYTES, (float(features),))


OPERATOR = with_stream_stand_in(
    Operator(
        name="kjt_permute",
        dimensions=("features", "lookups"),
        work=_work,
        directions=(Direction.FORWARD,),
        extra_kinds=("count",),
        byte_sizes="fixed",
        launches=(6, 1),
        source="FBGEMM, permute_2D_sparse_data; TorchRec, sparse/jagged_tensor.py, KeyedJaggedTensor.permute",
    )
)
