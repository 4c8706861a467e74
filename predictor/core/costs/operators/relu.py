"""Rectified linear unit."""

from predictor.core.costs.stream_stand_ins import with_stream_stand_in
from predictor.core.costs.streams import over_elements

OPERATOR = with_stream_stand_in(
    over_elements(
        name="relu",
        dimensions=("elements",),
        passes=(2, 3),  # read and written once; backward also reads the gradient
        source="Nair and Hinton 2010, ICML; element-wise",
    )
)
