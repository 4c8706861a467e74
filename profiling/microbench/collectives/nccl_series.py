"""Sizes that one run of nccl-tests can cover, and the outcome of each.

A run takes sizes that double (-f 2) and allocates three buffers of its largest S at once: sent, received and, for the
check of values, expected. It never goes beyond a third of the GPU's memory less what it keeps for the rest: 1 GiB
in older versions, up to 5 GiB in today's. Source: nccl-tests, src/common.cu, run and AllocateBuffs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from microbench.collectives.bandwidth import total_bytes
from microbench.collectives.errors import CollectiveError, OutOfMemoryError
from microbench.collectives.nccl_tests import NcclTests
from microbench.table import Status
from predictor.core.costs.collectives import Topology

BUFFERS = 3
LEAST_RESERVED_BYTES = 2**30


class Result(NamedTuple):
    """Outcome of a size of one rank; without samples, ``kernel`` gives the reason."""

    size_bytes: int
    samples_us: tuple[float, ...]
    kernel: str
    status: Status = Status.OK


def doubling_series(sizes: Iterable[int]) -> list[list[int]]:
    """Return sizes in series that double, as -f 2 runs them: one series per odd part.

    >>> doubling_series([1024, 1536, 2048, 3072])
    [[1024, 2048], [1536, 3072]]
    """
    series: dict[int, list[int]] = {}
    for size in sorted(sizes):
        series.setdefault(size // (size & -size), []).append(size)
    return list(series.values())


def most_total_bytes(gpu_bytes: int) -> int:
    """Return the largest S that any version of nccl-tests runs, values checked, on a GPU of so much memory.

    >>> most_total_bytes(80 * 2**30) // 2**30
    26
    """
    return (gpu_bytes - LEAST_RESERVED_BYTES) // BUFFERS


def results(
    runner: NcclTests, collective: str, topology: Topology, sizes: list[int], gpu_bytes: int | None
) -> Iterator[Result]:
    """Run a series and yield the outcome of every size as soon as it is known.

    A size is out of memory where its buffers cannot fit, or where the binary reports it. The run is then repeated
    without the largest size, since a run allocates the buffers of its largest size for all.

    Args:
        runner: of the binaries.
        collective: to measure.
        topology: of the ranks.
        sizes: of one rank, each the first times a power of two, ascending.
        gpu_bytes: memory of the GPU; None where unknown.

    Raises:
        CollectiveError: see ``NcclTests.rows``; or memory ran out although the buffers are small.
    """

    def total(size: int) -> int:
        return total_bytes(collective, size, topology.ranks)

    left = [size for size in sizes if gpu_bytes is None or total(size) <= most_total_bytes(gpu_bytes)]
    for size in sizes[len(left) :]:
        reason = f"nccl-tests needs {BUFFERS} buffers of {total(size)} bytes and 1 GiB; the GPU has {gpu_bytes} bytes"
        yield Result(size, (), reason, Status.OUT_OF_MEMORY)
    while left:
        try:
            for size, row, kernel in runner.rows(collective, topology, list(left)):
                left.remove(size)
                yield Result(size, row.samples_us or (row.time_us,), kernel)
        except OutOfMemoryError as error:
            if not left:
                raise
            refused = left[-1:]
            if error.most_bytes is not None:
                refused = [size for size in left if total(size) > error.most_bytes]
            elif gpu_bytes is not None and 2 * BUFFERS * total(left[-1]) < gpu_bytes:
                raise CollectiveError(
                    f"{error}; yet {BUFFERS} buffers of {total(left[-1])} bytes are less than half of the GPU's "
                    f"{gpu_bytes}: another process holds its memory, or NCCL itself needs it for so many ranks"
                ) from None
            runner.say(f"{collective} over {topology.nodes}x{topology.gpus_per_node}: {error}")
            left = left[: -len(refused)]
            yield from (Result(size, (), f"nccl-tests: {error}", Status.OUT_OF_MEMORY) for size in refused)
