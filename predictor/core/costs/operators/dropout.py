"""Dropout alone."""

from predictor.core.costs.stream_stand_ins import with_stream_stand_in
from predictor.core.costs.streams import over_elements

OPERATOR = with_stream_stand_in(
    over_elements(
        name="dropout",
        dimensions=("elements",),
        passes=(2, 2),  # read and written once; the mask's byte is left out, since the seed gives it again
        source="Srivastava et al. 2014, JMLR 15; element-wise",
    )
)
