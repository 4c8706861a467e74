"""Update of an embedding table: merge the gradients of all lookups by row, then update each row and its states.

``states`` are the numbers that the optimizer keeps per weight: none of SGD, one of momentum and AdaGrad, two of Adam.
"""

from math import log2

from predictor.core.costs.operator import Direction, Operator, Shape, StandIn
from predictor.core.costs.stream_stand_ins import SCATTERED_LOG_ERROR, scattered_rows, streamed
from predictor.core.costs.work import Work

NUMBER_BYTES, KEY_BYTES = 4, 8
# Keys are sorted with the position of their lookup: four passes over eight bits each read and write twelve bytes, and
# one reads the keys to count them. Source: FBGEMM, transpose_embedding_input; Adinets and Merrill 2022,
# arXiv:2206.01784 (radix sort).
SORT_BYTES = 4 * 2 * (KEY_BYTES + 4) + KEY_BYTES
# PyTorch compares fewer keys than these, and sorts more of them digit by digit.
# Source: PyTorch, aten/src/ATen/native/cpu/SortingKernel.cpp, can_use_radix_sort; ATen/Parallel.h, GRAIN_SIZE.
RADIX_SORTED = 32768


def _work(shape: Shape, direction: Direction, num_multiprocessors: int) -> Work:
    """Gradients and keys of all lookups read; weights and states of the different rows read and written.

    ``extras``: bytes of the different rows; of their states; lookups; comparisons where few lookups are sorted; rows;
    states.
    """
    lookups, rows, width, states = shape
    row_bytes = float(width * NUMBER_BYTES)
    updated = 2.0 * rows * row_bytes * (1 + states)
    comparisons = lookups * log2(lookups) if lookups < RADIX_SORTED else 0.0
    return Work(
        0.0,
        lookups * (row_bytes + KEY_BYTES) + updated,
        (rows * row_bytes, states * rows * row_bytes, float(lookups), comparisons, float(rows), float(states)),
    )


def _stand_in(shape: Shape, direction: Direction, num_multiprocessors: int) -> StandIn:
    """A stream of the same bytes and of those that sorting moves, slower for rows that are narrow."""
    lookups, rows, width, states = shape
    scattered = width * NUMBER_BYTES * (lookups + 2.0 * rows * (1 + states))
    return streamed(scattered * scattered_rows(width) + lookups * (KEY_BYTES + SORT_BYTES), SCATTERED_LOG_ERROR)


OPERATOR = Operator(
    name="embedding_update",
    dimensions=("lookups", "rows", "width", "states"),
    work=_work,
    directions=(Direction.FORWARD,),
    extra_kinds=("bytes", "bytes", "count", "count", "count", "count"),
    byte_sizes="fixed",
    launches=(12, 1),
    stand_in=_stand_in,
    source="per-lookup gradients read; rows and states read and written; Mudigere et al. 2021, arXiv:2104.05158",
)
