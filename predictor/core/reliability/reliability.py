"""Failures of a job and what each costs: rates, stops, repairs, spares, planned stops, slow nodes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from math import sqrt

from predictor.core.base.quantities import HOURS_PER_MONTH
from predictor.core.hardware.hardware import System
from predictor.core.reliability.failure_rates import (
    FailureRates,
    Kind,
    failure_rates,
    generation_of,
    planned_per_month,
    stop_minutes,
)
from predictor.core.reliability.job import MINUTES_PER_HOUR
from predictor.core.reliability.new_cluster import KNOWN, Spread
from predictor.core.reliability.spares import MONTHLY_SCATTER, enough_spares
from predictor.core.schema.sections import BudgetSection

# From the knowledge of a failure's cause to the first new step, reading the checkpoint apart: new processes,
# communicators, compilation, warm-up. A failover takes "often more than 10 minutes" at 10,000 GPUs, a restart of all
# processes 8 to 13 at 2,048 to 16,384. Source: ByteRobust, arXiv:2509.16293, section 2.3 and table 7.
RESTART_MINUTES = 10.0
# Failures that show by a time-out alone: hangs, slow steps and NaN, of all but restarts by hand. Source: ByteRobust,
# table 1, three months of 778,135 jobs. Teams' stops have them at the default of PyTorch and Megatron-LM, 10 minutes.
HANG_SHARE = (5506 + 442 + 148) / (55363 - 9582)
HANG_TIMEOUT_MINUTES = 10.0
# Standard deviation of a single stop over the mean: 14 stops of GLM-130B's log, all by people, have 1.05. A mean of 39
# minutes beside a median of 4 (OLMo Hybrid) says more where machines restart: of 0.87 stops of 20 minutes and 0.13 of
# 110 the exponential parts alone have 1.5.
STOP_VARIATION = {"automatic": 1.5, "manual": 1.05}
# Failures after which a node leaves the job until it is repaired: 0.9 where machines are evicted on suspicion (223 of
# 249, ByteRobust, table 4), 0.25 where processes are restarted first (DLRover, docs/blogs/flash_checkpoint.md).
REMOVED = 0.6
# That a removed node is out, in the mean; the median is 18. Source: InfiniteHBD's trace of a cluster that pre-trains
# language models (arXiv:2502.03885, Apache-2.0), 283 faults of half of its 400 servers in 348 days.
REPAIR_HOURS = 118.0
# A run's software failures by its age grow with time to this power, as its causes are removed (Duane's law): 40 of
# OPT-175B's 90 restarts came in its first 22 of 56 days (metaseq, OPT/chronicles, 27 percent and final updates).
SOFTWARE_GROWTH = 0.74
# Age up to which the failures were counted: Llama 3's 54 days. A run of less than a day is taken for one.
COUNTED_HOURS, LEAST_HOURS = 54 * 24.0, 24.0
# A shorter training is taken for one of so many months, whose failures scatter as much.
LEAST_MONTHS = 0.5
# Spares over the job's nodes at most, and a node at least, where their number is not given: assumed, what a rack of 72
# GPUs has beside 64 that train. A cluster that fails more often waits, or trains on fewer nodes.
LARGEST_SPARE_SHARE = 1.0 / 8.0
CLUSTERS_TRIED = 50  # equally likely ones, for which spares are to suffice


@dataclass(frozen=True, slots=True)
class Reliability:
    """Failures of a job and their costs.

    Attributes:
        failures: rates.
        stop_hours: from a failure to the first new step, in the mean; reading the checkpoint and waiting apart.
        stop_spread: of that mean from one team to another.
        stop_variation: standard deviation of a single stop over its mean.
        spare_nodes: ready beside the job.
        repair_hours: that a failed node is out, in the mean.
        removed: share of failures that take a node out.
        shrinks: whether the job goes on without nodes that no spare replaces, instead of waiting.
        planned_per_hour, planned_hours: planned stops of the job, after a checkpoint, and their length.
        slow_share: productive time that slow nodes add.
        planned_spread: of the planned stops from one team to another.
        rollbacks_per_hour: returns to an earlier checkpoint because the loss diverged; each loses an interval.
        software_share: of the failures, which fall as the run grows older.
        monthly_scatter: standard deviation of the log of the failures from month to month.
        taken_per_gpu_hour: instances that their owner takes away and replaces, over GPUs: a rate that is known.
    """

    failures: FailureRates
    stop_hours: float
    stop_spread: Spread
    stop_variation: float
    spare_nodes: int
    repair_hours: float
    removed: float
    shrinks: bool
    planned_per_hour: float
    planned_hours: float
    slow_share: float
    planned_spread: Spread = KNOWN
    rollbacks_per_hour: float = 0.0
    software_share: float = 0.0
    monthly_scatter: float = 0.0
    taken_per_gpu_hour: float = 0.0

    def rate(self, num_gpus: int, failure_factor: float = 1.0) -> float:
        """Return the interruptions of a job in an hour, its failures over their central rate being a factor."""
        return (self.failures.per_gpu_hour * failure_factor + self.taken_per_gpu_hour) * num_gpus

    def mtbf_hours(self, num_gpus: int) -> float:
        """Return the mean time between interruptions of a job, in hours, at the central rate."""
        return 1.0 / self.rate(num_gpus)

    def scatter(self, hours: float) -> float:
        """Return the standard deviation of the log of one cluster's failures in a run of so many hours."""
        return self.monthly_scatter / sqrt(max(hours / HOURS_PER_MONTH, LEAST_MONTHS))

    def software_aging(self, hours: float) -> float:
        """Return the failures of a run of so many hours over those of one as old as the counted ones."""
        age = max(hours, LEAST_HOURS) / COUNTED_HOURS
        return 1.0 + self.software_share * (float(age ** (SOFTWARE_GROWTH - 1.0)) - 1.0)


def _or(given: float | None, default: float) -> float:
    """Return a value of the configuration, 0 included, or its default."""
    return default if given is None else given


def _spare_nodes(out: float, spread: Spread, num_nodes: int) -> int:
    """Return the spares of a job of whose nodes so many are out at the median rate."""
    probabilities = [(tried + 0.5) / CLUSTERS_TRIED for tried in range(CLUSTERS_TRIED)] if spread.deviation else [0.5]
    loads = [out * spread.factor(probability) for probability in probabilities]
    return enough_spares(loads, max(int(num_nodes * LARGEST_SPARE_SHARE), 1))


def reliability_of(budget: BudgetSection, system: System, num_nodes: int, without: Collection[str] = ()) -> Reliability:
    """Return what a budget says of a job's failures, with defaults for what it leaves out.

    Args:
        budget: rates and times that are known.
        system: its GPU's generation decides whose failures are taken.
        num_nodes: of the job; without a number of spares there are as many as suffice 99 % of the time, over clusters
            and months, and no more than a share of the job.
        without: published clusters that take no part, by name.
    """
    left_out = frozenset(without)
    rates = failure_rates(generation_of(system.gpu), left_out)
    software = rates.shares[Kind.SOFTWARE]
    if budget.mtbf_per_gpu_hours is not None:
        rates = FailureRates(1.0 / budget.mtbf_per_gpu_hours, KNOWN, rates.shares, "budget.mtbf_per_gpu_hours")
        software = 0.0
    stops = stop_minutes(budget.recovery, left_out)
    hangs = HANG_SHARE * (_or(budget.hang_timeout_minutes, HANG_TIMEOUT_MINUTES) - HANG_TIMEOUT_MINUTES)
    restart = _or(budget.restart_minutes, RESTART_MINUTES)
    minutes = _or(budget.detection_minutes, max(stops.median - RESTART_MINUTES + hangs, 0.0)) + restart
    is_known = budget.detection_minutes is not None and budget.restart_minutes is not None
    planned = planned_per_month(left_out)
    repair = _or(budget.repair_hours, REPAIR_HOURS)
    out = rates.per_gpu_hour * system.gpus_per_node * num_nodes * REMOVED * repair
    return Reliability(
        failures=rates,
        stop_hours=minutes / MINUTES_PER_HOUR,
        stop_spread=KNOWN if is_known else stops.spread,
        stop_variation=STOP_VARIATION[budget.recovery],
        spare_nodes=_spare_nodes(out, rates.spread, num_nodes) if budget.spare_nodes is None else budget.spare_nodes,
        repair_hours=repair,
        removed=REMOVED,
        shrinks=budget.without_spares == "shrink",
        planned_per_hour=_or(budget.planned_stops_per_month, planned.median) / HOURS_PER_MONTH,
        planned_hours=_or(budget.planned_stop_hours, restart / MINUTES_PER_HOUR),
        slow_share=_or(budget.slow_share, 0.0),
        planned_spread=planned.spread if budget.planned_stops_per_month is None else KNOWN,
        rollbacks_per_hour=_or(budget.rollbacks_per_month, 0.0) / HOURS_PER_MONTH,
        software_share=software,
        monthly_scatter=MONTHLY_SCATTER,
    )
