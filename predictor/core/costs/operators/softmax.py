"""Unfused attention: softmax over the keys.

A block of threads reads a row 16 bytes at a time for as long as all its threads take part; the rest, the row's tail, it
reads again element by element in every pass. A row of 4,096 has none, one of 3,584 has 1,536 elements. Source: PyTorch,
aten/src/ATen/native/cuda/PersistentSoftmax.cuh (up to 1,024 a warp holds the row) and SoftMax.cu, SoftMax_getBlockSize,
ilpReduce.
"""

from dataclasses import replace

from predictor.core.costs.operator import Direction, Shape
from predictor.core.costs.streams import over_scores
from predictor.core.costs.work import ELEMENT_BYTES, Work

LONGEST_HELD_BY_A_WARP = 1024
READ_AT_ONCE = 16 // ELEMENT_BYTES
WARP, MOST_THREADS = 32, 1024

_BY_BYTES = over_scores(
    "softmax", passes=(2, 3), source="one read and one write of every score; backward reads two and writes one"
)


def tail(sequence: int) -> int:
    """Return the elements of a row that a block reads one by one.

    >>> [tail(sequence) for sequence in (1000, 1536, 2048, 2560, 3584, 4096)]
    [0, 512, 0, 512, 1536, 0]
    """
    if sequence <= LONGEST_HELD_BY_A_WARP:
        return 0
    threads = 1
    while threads < min(sequence // READ_AT_ONCE, MOST_THREADS) // 2:
        threads *= 2
    return sequence % (READ_AT_ONCE * max(threads, WARP))


def work(shape: Shape, direction: Direction, num_multiprocessors: int) -> Work:
    """Return the work by bytes; ``extras`` end with the bytes of the tails."""
    flops, size_bytes, rows = _BY_BYTES.work(shape, direction, num_multiprocessors)
    _, sequence = shape
    left = tail(sequence)
    return Work(flops, size_bytes, (*rows, size_bytes * left / sequence))


OPERATOR = replace(_BY_BYTES, work=work, extra_kinds=(*_BY_BYTES.extra_kinds, "bytes"))
