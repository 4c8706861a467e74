"""Wall time of a training among failures: expected at the central rates, and drawn."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, inf

from predictor.core.reliability.checkpointing import Checkpointing
from predictor.core.reliability.events import Chance, DrawnEvents, MeanEvents
from predictor.core.reliability.interruptions import Moments, interruptions
from predictor.core.reliability.job import Job
from predictor.core.reliability.new_cluster import Spread
from predictor.core.reliability.reliability import Reliability
from predictor.core.reliability.spares import erlang_b, missing_nodes
from predictor.core.reliability.wall_times import WallTime, WallTimes, no_progress

# Below this share a training is said to make no progress, rather than how many times as long it takes.
LEAST_SHARE = 0.01


@dataclass(frozen=True, slots=True)
class Factors:
    """One cluster and team over the central ones.

    Attributes:
        failures: over the central rate.
        stops: over their central length.
        planned: planned stops over their central number.
    """

    failures: float = 1.0
    stops: float = 1.0
    planned: float = 1.0


def _wall_time(
    job: Job,
    productive: float,
    reliability: Reliability,
    checkpointing: Checkpointing,
    factors: Factors,
    events: MeanEvents,
) -> WallTime:
    """Return the wall time under given rates.

    Args:
        job: of the nodes that fail.
        productive: hours of its steps.
        reliability: with the central rates.
        checkpointing: of the job.
        factors: on those rates.
        events: how many there are, and what they cost.
    """
    failure_factor = factors.failures * reliability.software_aging(productive)
    rate = reliability.rate(job.num_gpus, failure_factor)
    slow = productive * reliability.slow_share
    found = interruptions(rate, productive + slow, reliability, checkpointing, factors.stops)
    if found is None:
        return no_progress(productive)
    hit = events.count(Chance.FAILURES, found.segments * found.failures_each, found.segments)
    failures = hit * found.restarts_each
    recomputed = events.total(Chance.LOST, hit, found.lost)
    restart = events.total(Chance.STOPS, hit, found.stop)
    checkpoint = found.segments * checkpointing.pause_hours
    running = productive + slow + recomputed + restart + checkpoint
    rollbacks = events.count(Chance.ROLLBACKS, running * reliability.rollbacks_per_hour)
    # A checkpoint from before the divergence is half an interval old, and up to one more is not good.
    recomputed += rollbacks * checkpointing.interval_hours
    stops = events.count(Chance.PLANNED, running * reliability.planned_per_hour * factors.planned) + rollbacks
    planned = Moments(reliability.planned_hours, reliability.planned_hours**2)
    maintenance = events.total(Chance.PLANNED_HOURS, stops, planned)
    broken = 1.0 - reliability.taken_per_gpu_hour * job.num_gpus / rate  # others were taken away and replaced
    out = failures / running * broken * reliability.removed * reliability.repair_hours
    waiting = 0.0
    if reliability.shrinks:
        missing = missing_nodes(reliability.spare_nodes, out) / job.num_nodes
        slow += (productive + slow) * missing / max(1.0 - missing, LEAST_SHARE)
    else:
        busy = erlang_b(reliability.spare_nodes + 1, out)
        if 1.0 - busy < LEAST_SHARE:
            return no_progress(productive)
        each = reliability.repair_hours / (reliability.spare_nodes + 1)
        waits = events.count(Chance.WAITS, running * busy / (1.0 - busy) / each)
        waiting = events.total(Chance.WAITING_HOURS, waits, Moments(each, each * each))
    wall = WallTime(productive, recomputed, restart, checkpoint, waiting, maintenance, slow, failures)
    return wall if wall.goodput > LEAST_SHARE else no_progress(productive)


def expected(job: Job, reliability: Reliability, checkpointing: Checkpointing) -> WallTime:
    """Return the mean wall time at the central rates."""
    return _wall_time(job, job.hours, reliability, checkpointing, Factors(), MeanEvents())


def _drawn_factors(job: Job, reliability: Reliability, events: DrawnEvents) -> Factors:
    """Return one cluster and team, and its months, whose failures are those of the cluster in the mean."""
    random = events.stream(Chance.CLUSTER)
    cluster, months, team, plans = (random.random() for _ in range(4))
    scatter = reliability.scatter(job.hours)
    of_months = Spread(scatter, inf).factor(months) * exp(-scatter * scatter / 2.0)
    return Factors(
        failures=reliability.failures.spread.factor(cluster) * of_months,
        stops=reliability.stop_spread.factor(team),
        planned=reliability.planned_spread.factor(plans),
    )


def simulate(
    job: Job, reliability: Reliability, checkpointing: Checkpointing, seed: int = 0, draws: int = 1000
) -> WallTimes:
    """Return draws of the wall time: of the rates, which differ from cluster to cluster, and of what then happens.

    Args:
        job: draw i takes the i-th of its productive hours, from the start again where there are fewer.
        reliability: rates and their spread.
        checkpointing: the same in every draw.
        seed: the same seed gives the same draws.
        draws: number of them.
    """
    given = job.productive_hours
    hours = [given] if isinstance(given, int | float) else list(given)
    found = []
    for draw in range(draws):
        events = DrawnEvents(seed, draw)
        factors = _drawn_factors(job, reliability, events)
        productive = hours[draw % len(hours)]
        found.append(_wall_time(job, productive, reliability, checkpointing, factors, events))
    return WallTimes(tuple(found))
