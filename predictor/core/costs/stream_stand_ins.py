"""Stand-ins of memory-bound operators: a residual addition that streams as many bytes.

Every published system measured the residual addition, and it reaches the highest share of the memory bandwidth. A
kernel that reads or writes chosen rows reaches less: ``scattered_rows``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import log

from predictor.core.costs.operator import Direction, Operator, Shape, StandIn
from predictor.core.costs.work import ELEMENT_BYTES

DONOR = "residual_add"
DONOR_PASSES = 3  # two reads and one write
# Widths that every published system measured, and the most rows.
DONOR_WIDTHS = (2048, 4096, 8192)
DONOR_ROWS = 40_000

# How much longer a table's rows take than a stream of as many bytes, by the least width in fp32 numbers: a warp of 32
# threads reads four numbers each, so that narrower rows leave threads idle.
# Source: TorchRec, distributed/planner/constants.py, HALF_BLOCK_PENALTY, QUARTER_BLOCK_PENALTY ("empirical studies").
SCATTERED = ((128, 1.0), (64, 1.15), (0, 1.75))
# Not measured on these systems: as uncertain as the largest penalty.
SCATTERED_LOG_ERROR = log(1.75)


def streamed(size_bytes: float, log_error: float = 0.0) -> StandIn:
    """Return the residual addition that streams so many bytes, as ``Work`` counts them."""
    elements = max(size_bytes / (DONOR_PASSES * ELEMENT_BYTES), 1.0)
    least = next((width for width in DONOR_WIDTHS if elements <= width * DONOR_ROWS), DONOR_WIDTHS[-1])
    rows = max(1, int(elements / least))
    width = max(1, round(elements / rows))
    return StandIn(DONOR, (rows, width), elements / (rows * width), log_error)


def scattered_rows(width: int) -> float:
    """Return how much longer rows of so many fp32 numbers take than a stream of as many bytes.

    >>> scattered_rows(128), scattered_rows(64), scattered_rows(16)
    (1.0, 1.15, 1.75)
    """
    return next(factor for least, factor in SCATTERED if width >= least)


def with_stream_stand_in(operator: Operator, passes: tuple[float, float] | None = None) -> Operator:
    """Return an operator that a residual addition of the same bytes stands in for.

    Args:
        operator: memory-bound.
        passes: of the kernels that run over the least passes, forward and backward; as many by default.
    """
    return replace(operator, stand_in=_same_bytes(operator, passes or (1.0, 1.0)))


def _same_bytes(operator: Operator, over_least: tuple[float, float]) -> Callable[[Shape, Direction, int], StandIn]:
    def stand_in(shape: Shape, direction: Direction, num_multiprocessors: int) -> StandIn:
        least = operator.work(shape, direction, num_multiprocessors).size_bytes
        return streamed(least * over_least[direction is Direction.BACKWARD])

    return stand_in
