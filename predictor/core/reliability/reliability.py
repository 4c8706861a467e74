"""Failures of a job and what each costs: rates, stops, repairs, spares, planned stops, slow nodes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from math import ceil

from predictor.core.hardware.hardware import System
from predictor.core.reliability.failure_rates import FailureRates, Kind, failure_rates, generation_of
from predictor.core.reliability.job import MINUTES_PER_HOUR
from predictor.core.schema.sections import BudgetSection

HOURS_PER_MONTH = 30.0 * 24.0
# From a failure to the knowledge of its cause: detection and diagnosis take less than 10 minutes in the mean.
# Source: Jiang et al. 2024 (MegaScale), arXiv:2402.15627, section 4.
DETECTION_MINUTES = 10.0
# From there to the first new step, reading the checkpoint apart: new processes, communicators, compilation, warm-up.
# Source: MegaScale, section 4: training catches up within 15 minutes of a failure, detection included.
RESTART_MINUTES = 5.0
# Log standard deviation of the mean stop from one team to another.
STOP_SPREAD = 0.7
# A single stop around its mean: as an exponential distribution.
STOP_VARIATION = 1.0
# Spare nodes for each node of the job: 4 spare nodes beside 48. Source: BLOOM, arXiv:2211.05100, section 3.4.1.
SPARE_SHARE = 0.03
REPAIR_HOURS = 48.0
# Failures after which a node leaves the job until it is repaired or tested.
REMOVES = {Kind.GPU: 1.0, Kind.NODE: 1.0, Kind.NETWORK: 0.5, Kind.SOFTWARE: 0.0, Kind.UNKNOWN: 0.5}
# 47 planned stops in 54 days. Source: arXiv:2407.21783, section 3.3.4.
PLANNED_PER_MONTH = 47.0 * 30.0 / 54.0


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

    def mtbf_hours(self, num_gpus: int) -> float:
        """Return the mean time between failures of a job, in hours."""
        return 1.0 / (self.failures.per_gpu_hour * num_gpus)


def _or(given: float | None, default: float) -> float:
    """Return a value of the configuration, 0 included, or its default."""
    return default if given is None else given


def reliability_of(budget: BudgetSection, system: System, num_nodes: int, without: Collection[str] = ()) -> Reliability:
    """Return what a budget says of a job's failures, with defaults for what it leaves out.

    Args:
        budget: rates and times that are known.
        system: its GPU's generation decides whose failures are taken.
        num_nodes: of the job, of which spares are a share where their number is not given.
        without: published clusters that take no part, by name.
    """
    rates = failure_rates(generation_of(system.gpu), without)
    if budget.mtbf_per_gpu_hours is not None:
        rates = FailureRates(1.0 / budget.mtbf_per_gpu_hours, 0.0, rates.shares, "budget.mtbf_per_gpu_hours")
    minutes = _or(budget.detection_minutes, DETECTION_MINUTES) + _or(budget.restart_minutes, RESTART_MINUTES)
    is_known = budget.detection_minutes is not None and budget.restart_minutes is not None
    return Reliability(
        failures=rates,
        stop_hours=minutes / MINUTES_PER_HOUR,
        stop_spread=0.0 if is_known else STOP_SPREAD,
        stop_variation=STOP_VARIATION,
        spare_nodes=ceil(SPARE_SHARE * num_nodes) if budget.spare_nodes is None else budget.spare_nodes,
        repair_hours=_or(budget.repair_hours, REPAIR_HOURS),
        removed=sum(share * REMOVES[kind] for kind, share in rates.shares.items()),
        shrinks=budget.without_spares == "shrink",
        planned_per_hour=_or(budget.planned_stops_per_month, PLANNED_PER_MONTH) / HOURS_PER_MONTH,
        planned_hours=_or(budget.planned_stop_hours, minutes / MINUTES_PER_HOUR),
        slow_share=_or(budget.slow_share, 0.0),
    )
