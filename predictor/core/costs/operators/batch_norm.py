"""Batch normalisation over (rows, width), a mean and a variance per column."""

from predictor.core.costs.stream_stand_ins import with_stream_stand_in
from predictor.core.costs.streams import over_elements

OPERATOR = with_stream_stand_in(
    over_elements(
        name="batch_norm",
        dimensions=("rows", "width"),
        # Read for the statistics, then read and written; backward the same with two tensors to read.
        passes=(3, 5),
        rows=lambda shape: shape[1],
        launches=(2, 2),
        source="Ioffe and Szegedy 2015, arXiv:1502.03167; statistics are known after all rows were read",
    )
)
