"""Copy of a tensor into another, as concatenation, slices and reshapes that move data cost."""

from predictor.core.costs.stream_stand_ins import with_stream_stand_in
from predictor.core.costs.streams import over_elements

OPERATOR = with_stream_stand_in(
    over_elements(
        name="tensor_copy",
        dimensions=("elements",),
        passes=(2, 2),
        source="one read and one write per element",
    )
)
