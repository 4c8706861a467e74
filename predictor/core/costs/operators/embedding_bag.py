"""Pooled embedding lookup: sum the fp32 rows of each bag's keys.

A bag is one slot of one sample. ``rows`` are the different rows that all lookups touch. Tables, and what is pooled,
are fp32 in whatever precision; mixed precision casts the pooled vectors.
"""

from predictor.core.costs.operator import Direction, Operator, Shape, StandIn
from predictor.core.costs.stream_stand_ins import SCATTERED_LOG_ERROR, scattered_rows, streamed
from predictor.core.costs.work import Work

NUMBER_BYTES, KEY_BYTES = 4, 8
# A repeated row comes from the L2 cache: 5,120 bytes a clock of 1.41 GHz, where memory gives 2,039 GB/s.
# Source: NVIDIA A100 Tensor Core GPU Architecture whitepaper, section on the L2 cache.
REPEATED = 0.28


def _work(shape: Shape, direction: Direction, num_multiprocessors: int) -> Work:
    """Each different row and every key read once, a vector per bag written.

    ``extras``: bytes of all lookups' rows, cached or not; lookups; bags.
    """
    bags, lookups, rows, width = shape
    row_bytes = float(width * NUMBER_BYTES)
    size_bytes = (rows + bags) * row_bytes + (lookups + bags) * KEY_BYTES
    return Work(0.0, size_bytes, (lookups * row_bytes, float(lookups), float(bags)))


def _stand_in(shape: Shape, direction: Direction, num_multiprocessors: int) -> StandIn:
    """A stream of the bytes of keys, vectors and rows, slower for rows that are narrow."""
    bags, lookups, rows, width = shape
    row_bytes = width * NUMBER_BYTES
    read = (rows + REPEATED * max(lookups - rows, 0)) * row_bytes * scattered_rows(width)
    return streamed(read + bags * row_bytes + (lookups + bags) * KEY_BYTES, SCATTERED_LOG_ERROR)


OPERATOR = Operator(
    name="embedding_bag",
    dimensions=("bags", "lookups", "rows", "width"),
    work=_work,
    directions=(Direction.FORWARD,),
    extra_kinds=("bytes", "count", "count"),
    byte_sizes="fixed",
    stand_in=_stand_in,
    source="distinct rows read, a vector per bag written; Naumov et al. 2019, arXiv:1906.00091",
)
