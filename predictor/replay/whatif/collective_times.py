"""Times of traced collectives on other links or over other numbers of ranks: measured × predicted ÷ predicted.

A collective keeps the ratio of its measured time to its predicted one. It is predicted by a published system's
regressors, or by latency and bandwidth of the links (α–β) that fit the traced collectives best.
Source of the bytes and steps of each: predictor/core/costs/collectives.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, exp, floor
from typing import NamedTuple, Protocol

from predictor.core.costs.collectives import COLLECTIVES, Topology
from predictor.core.costs.cost import Cost, Source
from predictor.core.costs.published import PublishedSystem
from predictor.core.costs.transfer_errors import transfer_errors
from predictor.replay.graph.local_graph import Collective
from predictor.replay.graph.rank_count import bytes_and_steps, shard
from predictor.replay.whatif.traced_step import TracedStep, product

POINT_TO_POINT = "point_to_point"
SAME_AS = {"send": POINT_TO_POINT, "recv": POINT_TO_POINT}
BYTES_PER_US = 1e3  # of 1 GB/s
# What the times of the step's collectives do where they do not tell the latency of the links.
ONE_SIZE, NO_LATENCY, FLAT = (
    "are of one size",
    "grow more than in proportion to their sizes",
    "do not grow with their sizes",
)


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
        hop_us: a latency step; 0 where it is not known.
        us_per_byte: that a rank sends.
        slowest_hop_us: a latency step if all time were latency, where latency is not known; 0: it is known.
        doubt: why latency is not known, of the traced collectives' times; empty: it is known.
    """

    hop_us: float
    us_per_byte: float
    slowest_hop_us: float = 0.0
    doubt: str = ""

    @property
    def knows_latency(self) -> bool:
        """Return whether the traced times part latency from bytes."""
        return not self.doubt

    @property
    def knows_bandwidth(self) -> bool:
        """Return whether the traced times grow with bytes, or may."""
        return self.doubt != FLAT

    def __call__(self, name: str, size_bytes: float, ranks: int) -> Cost:
        """Return the cost of one call.

        Its interval is that of a collective timed by its bytes over links; where latency is not known, from all time in
        bytes to all of it in latency.
        """
        if ranks < 2:
            return Cost(0.0, 0.0, 0.0, Source.ANALYTIC)
        sent, steps = bytes_and_steps(name, size_bytes, ranks)
        us = self.hop_us * steps + self.us_per_byte * sent
        latency_us = us if self.knows_latency else self.slowest_hop_us * steps
        error = transfer_errors().collectives["alike"]
        return Cost(us, min(us, latency_us) * exp(-error), max(us, latency_us) * exp(error), Source.ANALYTIC)

    @property
    def bandwidth_gb_per_s(self) -> float:
        """Return the bandwidth."""
        return 1.0 / (self.us_per_byte * BYTES_PER_US)

    def told(self) -> str:
        """Return the links in words."""
        latency = f" and {self.hop_us:.4g} µs a step" if self.knows_latency else ""
        return f"links of {self.bandwidth_gb_per_s:.4g} GB/s{latency}, as the trace's collectives use them"

    def doubts(self) -> list[str]:
        """Return what the traced times do not tell, one sentence each."""
        if self.knows_latency:
            return []
        why = f"Latency is not known, as the times of the step's collectives {self.doubt}"
        return [f"{why}: all time counts as bytes, and the interval reaches to all of it in latency."]


@dataclass(frozen=True, slots=True)
class SystemCosts:
    """Collectives of a published system; ranks fill its nodes in order."""

    system: PublishedSystem

    def __call__(self, name: str, size_bytes: float, ranks: int) -> Cost:
        """Return the cost of one call.

        Raises:
            PublishedError: the system has no regressor for it.
        """
        nodes = ceil(ranks / self.system.hardware.reach)
        topology = Topology(nodes, ceil(ranks / nodes))
        return self.system.collective(name, shard(name, size_bytes, ranks), topology)

    def told(self) -> str:
        """Return the system in words."""
        return f"collectives of {self.system.name}"


def fitted_links(collectives: Sequence[TimedCollective]) -> LinkCosts | None:
    """Return the links that fit the measured times best, by least squares of relative errors; None without any.

    Where times do not part latency from bytes, all time is taken to go into bytes: of collectives of one size, and
    where the best fit has no bandwidth or no latency.
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
    doubt = ONE_SIZE
    if determinant > 1e-9 * aa * bb:
        hop_us, us_per_byte = (a * bb - b * ab) / determinant, (b * aa - a * ab) / determinant
        if hop_us > 0.0 and us_per_byte > 0.0:
            return LinkCosts(hop_us, us_per_byte)
        doubt = NO_LATENCY if us_per_byte > 0.0 else FLAT
    return LinkCosts(0.0, b / bb, a / aa, doubt)


def measured_over_predicted(collectives: Sequence[TimedCollective], costs_of: CollectiveCosts) -> Cost:
    """Return the ratio of all measured times to the predicted ones, with the interval of single ones.

    It holds 90 % of the single ratios, rounded outwards: all of them where they are few.
    """
    predicted = [costs_of(timed.name, timed.collective.size_bytes, timed.ranks).us for timed in collectives]
    pairs = [(timed.us, us) for timed, us in zip(collectives, predicted, strict=True) if timed.us > 0.0 and us > 0.0]
    if not pairs:
        return Cost(1.0, 1.0, 1.0, Source.ANALYTIC)
    ratios = sorted(measured / us for measured, us in pairs)
    last = len(ratios) - 1
    ratio = sum(measured for measured, _ in pairs) / sum(us for _, us in pairs)
    low, high = ratios[floor(0.05 * last)], ratios[ceil(0.95 * last)]
    return Cost(ratio, min(ratio, low), max(ratio, high), Source.ANALYTIC)


def rescaled(known: Cost, before: Cost, after: Cost, ratios: Cost) -> Cost:
    """Return a known time × after ÷ before.

    Its interval has the relative one of ``after``, and that of a collective which does not keep its own ratio of
    measured to predicted, but has another of those measured. A prediction that did not change leaves the time as it is.

    Args:
        known: before the change.
        before: predicted.
        after: likewise, with the change.
        ratios: see ``measured_over_predicted``.
    """
    if before == after or before.us <= 0.0:
        return known
    kept = product((after * (1.0 / before.us))._replace(source=max(after.source, before.source)), known)
    other = product(after, ratios)
    return kept._replace(low_us=min(kept.low_us, other.low_us), high_us=max(kept.high_us, other.high_us))
