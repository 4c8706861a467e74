"""Wall time of a training among failures: expected at the central rates, and drawn."""

from __future__ import annotations

from collections.abc import Callable
from math import exp, floor, sqrt
from random import Random

from predictor.core.reliability.checkpointing import Checkpointing
from predictor.core.reliability.interruptions import Moments, interruptions
from predictor.core.reliability.job import Job
from predictor.core.reliability.reliability import Reliability
from predictor.core.reliability.spares import enough_spares, erlang_b, missing_nodes
from predictor.core.reliability.wall_times import WallTime, WallTimes, no_progress

# Below this share a training is said to make no progress, rather than how many times as long it takes.
LEAST_SHARE = 0.01
MANY = 30.0  # a Poisson number of more is drawn from a normal distribution
Count = Callable[[float, float], float]
Sum = Callable[[float, Moments], float]


def _mean_count(mean: float, _: float) -> float:
    return mean


def _mean_sum(number: float, each: Moments) -> float:
    return number * each.mean


def _poisson(random: Random, mean: float) -> float:
    """Return a Poisson-distributed number."""
    if mean > MANY:
        return max(floor(random.gauss(mean, sqrt(mean)) + 0.5), 0)
    number, term, drawn = 0, exp(-mean), random.random()
    while drawn > term and number < 10 * MANY:
        drawn -= term
        number += 1
        term *= mean / number
    return number


def _drawn_sum(random: Random, number: float, each: Moments) -> float:
    """Return the sum of a number of independent costs: a gamma distribution of their mean and variance."""
    if number <= 0.0 or each.mean <= 0.0 or each.variance <= 0.0:
        return number * each.mean
    scale = each.variance / each.mean
    return random.gammavariate(number * each.mean / scale, scale)


def _wall_time(
    job: Job,
    productive: float,
    reliability: Reliability,
    checkpointing: Checkpointing,
    factors: tuple[float, float, float],
    count: Count,
    total: Sum,
) -> WallTime:
    """Return the wall time under given rates.

    Args:
        job: of the nodes that fail.
        productive: hours of its steps.
        reliability: with the central rates.
        checkpointing: of the job.
        factors: failures over the central rate, stops over their central length, planned stops over their number.
        count: number of events of a mean, in so many independent tries (Poisson: infinitely many).
        total: sum of the costs of a number of events.
    """
    often, longer, planned = factors
    often *= reliability.younger(productive)
    slow = productive * reliability.slow_share
    found = interruptions(job, productive + slow, reliability, checkpointing, often, longer)
    if found is None:
        return no_progress(productive)
    hit = count(found.segments * found.failures_each, found.segments)
    failures = hit * found.restarts_each
    recomputed, restart = total(hit, found.lost), total(hit, found.stop)
    checkpoint = found.segments * checkpointing.pause_hours
    running = productive + slow + recomputed + restart + checkpoint
    rollbacks = count(running * reliability.rollbacks_per_hour, 0.0)
    # A checkpoint from before the divergence is half an interval old, and up to one more is not good.
    recomputed += rollbacks * checkpointing.interval_hours
    stops = count(running * reliability.planned_per_hour * planned, 0.0) + rollbacks
    maintenance = total(stops, Moments(reliability.planned_hours, reliability.planned_hours**2))
    out = failures / running * reliability.removed * reliability.repair_hours
    spares = enough_spares(out) if reliability.has_enough_spares else reliability.spare_nodes
    waiting = 0.0
    if reliability.shrinks:
        missing = missing_nodes(spares, out) / job.num_nodes
        slow += (productive + slow) * missing / max(1.0 - missing, LEAST_SHARE)
    else:
        busy = erlang_b(spares + 1, out)
        each = reliability.repair_hours / (spares + 1)
        waits = count(running * busy / (1.0 - busy) / each, 0.0)
        waiting = total(waits, Moments(each, each * each))
    wall = WallTime(productive, recomputed, restart, checkpoint, waiting, maintenance, slow, failures)
    return wall if wall.goodput > LEAST_SHARE else no_progress(productive)


def expected(job: Job, reliability: Reliability, checkpointing: Checkpointing) -> WallTime:
    """Return the mean wall time at the central rates."""
    return _wall_time(job, job.hours, reliability, checkpointing, (1.0, 1.0, 1.0), _mean_count, _mean_sum)


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
    random = Random(seed)
    given = job.productive_hours
    hours = [given] if isinstance(given, int | float) else list(given)

    def count(mean: float, tries: float) -> float:
        # Geometric numbers over all tries: a Poisson number whose mean is gamma-distributed.
        return _poisson(random, random.gammavariate(tries, mean / tries) if tries > 0.0 and mean > 0.0 else mean)

    def total(number: float, each: Moments) -> float:
        return _drawn_sum(random, number, each)

    found = []
    for draw in range(draws):
        often = random.lognormvariate(0.0, reliability.scatter(job.hours))
        longer = random.lognormvariate(0.0, reliability.stop_spread)
        planned = random.lognormvariate(0.0, reliability.planned_spread)
        productive = hours[draw % len(hours)]
        found.append(_wall_time(job, productive, reliability, checkpointing, (often, longer, planned), count, total))
    return WallTimes(tuple(found))
