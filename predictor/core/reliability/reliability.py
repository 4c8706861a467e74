"""Failures of a job and what each costs: rates, stops, repairs, spares, planned stops, slow nodes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from math import hypot, sqrt

from predictor.core.hardware.hardware import System
from predictor.core.reliability.failure_rates import (
    DAYS_PER_MONTH,
    FailureRates,
    Kind,
    failure_rates,
    generation_of,
    planned_per_month,
    stop_minutes,
)
from predictor.core.reliability.job import MINUTES_PER_HOUR
from predictor.core.reliability.spares import MONTHLY_SCATTER, enough_spares
from predictor.core.schema.sections import BudgetSection

HOURS_PER_MONTH = DAYS_PER_MONTH * 24.0
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


@dataclass(frozen=True, slots=True)
class Reliability:
    """Failures of a job and their costs.

    Attributes:
        failures: rates.
        stop_hours: from a failure to the first new step, in the mean; reading the checkpoint and waiting apart.
        stop_spread: standard deviation of the log of that mean from one team to another; 0 where it is known.
        stop_variation: standard deviation of a single stop over its mean.
        spare_nodes: ready beside the job.
        repair_hours: that a failed node is out, in the mean.
        removed: share of failures that take a node out.
        shrinks: whether the job goes on without nodes that no spare replaces, instead of waiting.
        planned_per_hour, planned_hours: planned stops of the job, after a checkpoint, and their length.
        slow_share: productive time that slow nodes add.
        planned_spread: standard deviation of the log of the planned stops from one team to another.
        rollbacks_per_hour: returns to an earlier checkpoint because the loss diverged; each loses an interval.
        software_share: of the failures, which fall as the run grows older.
        monthly_scatter: standard deviation of the log of the failures from month to month.
        has_enough_spares: spares are as many as suffice at the rate that is drawn.
    """

    failures: FailureRates
    stop_hours: float
    stop_spread: float
    stop_variation: float
    spare_nodes: int
    repair_hours: float
    removed: float
    shrinks: bool
    planned_per_hour: float
    planned_hours: float
    slow_share: float
    planned_spread: float = 0.0
    rollbacks_per_hour: float = 0.0
    software_share: float = 0.0
    monthly_scatter: float = 0.0
    has_enough_spares: bool = False

    def mtbf_hours(self, num_gpus: int) -> float:
        """Return the mean time between failures of a job, in hours."""
        return 1.0 / (self.failures.per_gpu_hour * num_gpus)

    def scatter(self, hours: float) -> float:
        """Return the standard deviation of the log of the failures of a run of so many hours."""
        months = max(hours / HOURS_PER_MONTH, LEAST_MONTHS)
        return hypot(self.failures.spread, self.monthly_scatter / sqrt(months))

    def younger(self, hours: float) -> float:
        """Return the failures of a run of so many hours over those of one as old as the counted ones."""
        age = max(hours, LEAST_HOURS) / COUNTED_HOURS
        return 1.0 + self.software_share * (float(age ** (SOFTWARE_GROWTH - 1.0)) - 1.0)


def _or(given: float | None, default: float) -> float:
    """Return a value of the configuration, 0 included, or its default."""
    return default if given is None else given


def reliability_of(budget: BudgetSection, system: System, num_nodes: int, without: Collection[str] = ()) -> Reliability:
    """Return what a budget says of a job's failures, with defaults for what it leaves out.

    Args:
        budget: rates and times that are known.
        system: its GPU's generation decides whose failures are taken.
        num_nodes: of the job; without a number of spares there are as many as suffice 99 % of the time.
        without: published clusters that take no part, by name.
    """
    left_out = frozenset(without)
    rates = failure_rates(generation_of(system.gpu), left_out)
    software = rates.shares[Kind.SOFTWARE]
    if budget.mtbf_per_gpu_hours is not None:
        rates = FailureRates(1.0 / budget.mtbf_per_gpu_hours, 0.0, rates.shares, "budget.mtbf_per_gpu_hours")
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
        stop_spread=0.0 if is_known else stops.spread,
        stop_variation=STOP_VARIATION[budget.recovery],
        spare_nodes=enough_spares(out) if budget.spare_nodes is None else budget.spare_nodes,
        repair_hours=repair,
        removed=REMOVED,
        shrinks=budget.without_spares == "shrink",
        planned_per_hour=_or(budget.planned_stops_per_month, planned.median) / HOURS_PER_MONTH,
        planned_hours=_or(budget.planned_stop_hours, restart / MINUTES_PER_HOUR),
        slow_share=_or(budget.slow_share, 0.0),
        planned_spread=planned.spread if budget.planned_stops_per_month is None else 0.0,
        rollbacks_per_hour=_or(budget.rollbacks_per_month, 0.0) / HOURS_PER_MONTH,
        software_share=software,
        monthly_scatter=MONTHLY_SCATTER,
        has_enough_spares=budget.spare_nodes is None,
    )
