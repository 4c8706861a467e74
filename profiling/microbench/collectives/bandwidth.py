"""Algorithm and bus bandwidth as nccl-tests defines them, and the sizes that nccl-tests and the other backends can run.

``size_bytes`` of ``predictor.core.costs.collectives`` is what one rank contributes (all-gather) or keeps
(reduce-scatter). nccl-tests counts S, the total over ranks, for these two.
"""

from __future__ import annotations

from collections.abc import Callable

BUS_FACTORS: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda ranks: 2.0 * (ranks - 1) / ranks,
    "all_gather": lambda ranks: (ranks - 1) / ranks,
    "reduce_scatter": lambda ranks: (ranks - 1) / ranks,
    "all_to_all": lambda ranks: (ranks - 1) / ranks,
    "broadcast": lambda ranks: 1.0,
    "point_to_point": lambda ranks: 1.0,
}
COUNTED_OVER_RANKS = frozenset({"all_gather", "reduce_scatter"})
BYTES_PER_US_IN_GB_PER_S = 1e3
ALIGNMENT_BYTES = 16


def total_bytes(collective: str, size_bytes: int, num_ranks: int) -> int:
    """Return S of nccl-tests from the size that one rank counts.

    >>> total_bytes("all_gather", 1024, num_ranks=4), total_bytes("all_reduce", 1024, num_ranks=4)
    (4096, 1024)
    """
    return size_bytes * num_ranks if collective in COUNTED_OVER_RANKS else size_bytes


def size_multiple(collective: str, num_ranks: int) -> int:
    """Return the bytes that a size of one rank must be a multiple of to run unrounded.

    nccl-tests cuts what goes to each rank (all-to-all) or belongs to it (all-gather, reduce-scatter) down to 16 bytes,
    and prints what is left: 1,024 bytes to 6 ranks are 960, to 128 ranks none. Older versions
    cut to an element; sizes on 16 bytes come out of every version, and of every element's width, as they went in.

    Source: nccl-tests, src/alltoall.cu, all_gather.cu and reduce_scatter.cu, GetCollByteCount.

    >>> size_multiple("all_to_all", 6), size_multiple("all_gather", 6)
    (96, 16)
    """
    return ALIGNMENT_BYTES * (num_ranks if collective == "all_to_all" else 1)


def algorithm_bandwidth(size_bytes: int, time_us: float) -> float:
    """Return S ÷ t in GB/s (1 GB = 1e9 bytes). Source: nccl-tests, doc/PERFORMANCE.md, "Algorithm bandwidth".

    Raises:
        ValueError: time_us is not positive.
    """
    if time_us <= 0:
        raise ValueError(f"time_us is {time_us}; a call takes more than 0 µs")
    return size_bytes / time_us / BYTES_PER_US_IN_GB_PER_S


def bus_bandwidth(collective: str, size_bytes: int, time_us: float, num_ranks: int) -> float:
    """Return the bus bandwidth of a collective in GB/s (1 GB = 1e9 bytes).

    Args:
        collective: a name of ``predictor.core.costs.collectives``.
        size_bytes: S of nccl-tests; for all_gather and reduce_scatter the total over ranks (see ``total_bytes``).
        time_us: mean duration of one call.
        num_ranks: ranks that take part.

    Raises:
        ValueError: the collective is unknown or num_ranks < 2; the message lists the known ones.

    Source: nccl-tests, doc/PERFORMANCE.md, "Bus bandwidth"; src/alltoall.cu and src/sendrecv.cu, GetBw.

    >>> bus_bandwidth("all_reduce", 1_000_000_000, 10_000.0, num_ranks=8)
    175.0
    """
    if collective not in BUS_FACTORS:
        raise ValueError(f"unknown collective {collective!r}; known: {', '.join(BUS_FACTORS)}")
    if num_ranks < 2:
        raise ValueError(f"num_ranks is {num_ranks}; a collective has at least 2 ranks")
    return algorithm_bandwidth(size_bytes, time_us) * BUS_FACTORS[collective](num_ranks)
