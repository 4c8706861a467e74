"""Times of traced collectives on other links or over other numbers of ranks: measured × predicted ÷ predicted.

A collective keeps the ratio of its measured time to its predicted one. It is predicted by a published system's
regressors, or by latency and bandwidth of the links (α–β) that fit the traced collectives best.
Source of the bytes and steps of each: predictor/costs/collectives.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, exp, inf
from typing import NamedTuple, Protocol

from predictor.costs.collectives import COLLECTIVES, SHARDED, Topology
from predictor.costs.cost import Cost, Source
from predictor.costs.operator import Direction
from predictor.costs.published import PublishedSystem
from predictor.costs.transfer_errors import transfer_errors
from predictor.replay.traced_step import TracedStep, product
from predictor.traces.local_graph import Collective

POINT_TO_POINT = "point_to_point"
SAME_AS = {"send": POINT_TO_POINT, "recv": POINT_TO_POINT}
BYTES_PER_US = 1e3  # of 1 GB/s


class TimedCollective(NamedTuple):
    """A traced collective: the position of its task in the replay, its time there and the ranks of its group."""

    position: int
    rank: int
    collective: Collective
    us: float
    ranks: int

    @property
    def name(self) -> str:
        """Return the name under which it is predicted."""
        return SAME_AS.get(self.collective.name, self.collective.name)


def timed_collectives(step: TracedStep) -> list[TimedCollective]:
    """Return every collective of a step, traced or added by a change, without those that a change replaced."""
    places = step.places()
    known = [(places[rank][c.task], rank, c) for rank, local in enumerate(step.ranks) for c in local.collectives]
    known += [(position, step.roles[position].rank, collective) for position, collective in step.added.items()]
    return [
        TimedCollective(
            position,
            rank,
            collective,
            step.tasks[position].duration_us,
            len(collective.group_ranks) or step.ranks[rank].world_size,
        )
        for position, rank, collective in known
        if position not in step.replaced
    ]


def predicted_by_name(timed: TimedCollective) -> bool:
    """Return whether its bytes and steps are known."""
    return timed.name in COLLECTIVES and timed.collective.size_bytes > 0 and timed.ranks > 1


def _shard(name: str, size_bytes: float, ranks: int) -> float:
    """Return the size as ``predictor.costs.collectives`` counts it, from that of the operation's larger side."""
    return size_bytes / ranks if name in SHARDED else size_bytes


def bytes_and_steps(name: str, size_bytes: float, ranks: int) -> tuple[float, float]:
    """Return the bytes that each rank sends and the latency steps that it takes, over one kind of link."""
    work = COLLECTIVES[name].work((max(1, int(_shard(name, size_bytes, ranks))), 1, ranks), Direction.FORWARD, 1)
    return work.size_bytes, work.extras[3]


class CollectiveCosts(Protocol):
    """Predicts a collective from its name, size in bytes and number of ranks."""

    def __call__(self, name: str, size_bytes: float, ranks: int) -> Cost:
        """Return the cost of one call."""

    def told(self) -> str:
        """Return what it rests on."""


@dataclass(frozen=True, slots=True)
class LinkCosts:
    """Latency and bandwidth of the links between ranks, as collectives use them.

    Attributes:
        hop_us: a latency step.
        us_per_byte: that a rank sends.
    """

    hop_us: float
    us_per_byte: float

    def __call__(self, name: str, size_bytes: float, ranks: int) -> Cost:
        """Return the cost of one call; its interval is that of a collective timed by its bytes over links."""
        if ranks < 2:
            return Cost(0.0, 0.0, 0.0, Source.ANALYTIC)
        sent, steps = bytes_and_steps(name, size_bytes, ranks)
        us = self.hop_us * steps + self.us_per_byte * sent
        error = transfer_errors().collectives["alike"]
        return Cost(us, us * exp(-error), us * exp(error), Source.ANALYTIC)

    @property
    def bandwidth_gb_per_s(self) -> float:
        """Return the bandwidth; infinite where no time goes into bytes."""
        return 1.0 / (self.us_per_byte * BYTES_PER_US) if self.us_per_byte else inf

    def told(self) -> str:
        """Return the links in words."""
        links = f"links of {self.bandwidth_gb_per_s:.4g} GB/s and {self.hop_us:.4g} µs a step"
        return f"{links}, as the trace's collectives use them"


@dataclass(frozen=True, slots=True)
class SystemCosts:
    """Collectives of a published system; ranks fill its nodes in order."""

    system: PublishedSystem

    def __call__(self, name: str, size_bytes: float, ranks: int) -> Cost:
        """Return the cost of one call.

        Raises:
            PublishedError: the system has no regressor for it.
        """
        nodes = ceil(ranks / self.system.hardware.gpus_per_node)
        topology = Topology(nodes, ceil(ranks / nodes))
        return self.system.collective(name, _shard(name, size_bytes, ranks), topology)

    def told(self) -> str:
        """Return the system in words."""
        return f"collectives of {self.system.name}"


def fitted_links(collectives: Sequence[TimedCollective]) -> LinkCosts | None:
    """Return the links that fit the measured times best, by least squares of relative errors; None without any.

    Of collectives of one size only, all time is taken to go into bytes.
    """
    rows = []
    for timed in collectives:
        if predicted_by_name(timed) and timed.us > 0.0:
            sent, steps = bytes_and_steps(timed.name, timed.collective.size_bytes, timed.ranks)
            rows.append((steps / timed.us, sent / timed.us))
    if not rows:
        return None
    aa, ab, bb = (sum(row[i] * row[j] for row in rows) for i, j in ((0, 0), (0, 1), (1, 1)))
    a, b = sum(row[0] for row in rows), sum(row[1] for row in rows)
    determinant = aa * bb - ab * ab
    if determinant > 1e-9 * aa * bb:
        hop_us, us_per_byte = (a * bb - b * ab) / determinant, (b * aa - a * ab) / determinant
        if hop_us >= 0.0 and us_per_byte >= 0.0:
            return LinkCosts(hop_us, us_per_byte)
        if us_per_byte < 0.0:
            return LinkCosts(a / aa, 0.0)
    return LinkCosts(0.0, b / bb)


def rescaled(known: Cost, before: Cost, after: Cost) -> Cost:
    """Return a known time × after ÷ before, with the relative interval of ``after``.

    A prediction that did not change leaves the time as it is.
    """
    if before == after or before.us <= 0.0:
        return known
    ratio = replace(after * (1.0 / before.us), source=max(after.source, before.source))
    return product(ratio, known)
