"""Goodput of a long training: its time less interruptions, restarts and checkpoints."""

from __future__ import annotations

from dataclasses import dataclass
from math import isinf

from predictor.core.base.quantities import HOURS_PER_MONTH, span
from predictor.core.hardware.hardware import System
from predictor.core.reliability.job import MINUTES_PER_HOUR, SECONDS_PER_HOUR, Job
from predictor.core.schema.sections import BudgetSection

DRAWS = 400  # the ends of a 90 % interval are then known to about a hundredth of its probability


@dataclass(frozen=True, slots=True)
class Goodput:
    """A training among interruptions.

    Attributes:
        share: time of steps that count over wall time; 0 where the training makes no progress.
        low_share, high_share: its 90 % interval: over clusters, teams and chance; None where it was not drawn.
        hours: wall time, with what interruptions and checkpoints cost; None where it makes no progress.
        low_hours, high_hours: its 90 % interval, steps included; None as ``low_share``, or without progress.
        failures: in that time, at the median rate; None where it makes no progress.
        low_failures, high_failures: their 90 % interval; None as ``low_hours``.
        causes: shares of the wall time; empty where the training makes no progress.
        checkpoint_interval_hours: between checkpoints.
        checkpoint_seconds: that training waits for one.
        checkpoint_gb: that one writes.
        write_seconds: until a checkpoint is in storage, beside training.
        rates: clusters whose failures were taken, or the key that gives their rate.
        mtbf_hours: between failures of the job, at the median rate.
        low_mtbf_hours, high_mtbf_hours: its 90 % interval over clusters.
        stop_minutes: from a failure to the first new step, in the mean; reading the checkpoint apart.
        spare_nodes: ready beside the job.
        repair_hours: that a failed node is out, in the mean.
        planned_stops_per_month: the median.
        low_planned_stops_per_month, high_planned_stops_per_month: its 90 % interval over teams.
    """

    share: float
    low_share: float | None
    high_share: float | None
    hours: float | None
    low_hours: float | None
    high_hours: float | None
    failures: float | None
    low_failures: float | None
    high_failures: float | None
    causes: dict[str, float]
    checkpoint_interval_hours: float
    checkpoint_seconds: float
    checkpoint_gb: float
    write_seconds: float
    rates: str
    mtbf_hours: float
    low_mtbf_hours: float
    high_mtbf_hours: float
    stop_minutes: float
    spare_nodes: int
    repair_hours: float
    planned_stops_per_month: float
    low_planned_stops_per_month: float
    high_planned_stops_per_month: float


def _finite(hours: float) -> float | None:
    return None if isinf(hours) else hours


def goodput(job: Job, system: System, budget: BudgetSection, draws: int = DRAWS) -> Goodput:
    """Return the goodput of a training.

    Args:
        job: the training; with draws of its productive hours the interval of the wall time has theirs.
        system: with its GPU and its host link.
        budget: failures, repairs, storage and checkpoints, where they are given.
        draws: behind the interval; 0 for none.
    """
    from predictor.core.reliability.checkpointing import checkpointing_of  # of a whole training alone, for a fast start
    from predictor.core.reliability.reliability import reliability_of
    from predictor.core.reliability.simulate import expected, simulate
    from predictor.core.reliability.wall_times import Cause

    reliability = reliability_of(budget, system, job.num_nodes)
    saves = checkpointing_of(job, reliability, budget, system)
    wall = expected(job, reliability, saves)
    drawn = simulate(job, reliability, saves, draws=draws) if draws else None
    hours = _finite(wall.hours)
    rate, spread = reliability.rate(job.num_gpus, reliability.software_aging(job.hours)), reliability.failures.spread
    planned = reliability.planned_per_hour * HOURS_PER_MONTH
    return Goodput(
        share=wall.goodput,
        low_share=None if drawn is None else drawn.goodput(0.05),
        high_share=None if drawn is None else drawn.goodput(0.95),
        hours=hours,
        low_hours=None if drawn is None else _finite(drawn.quantile(0.05)),
        high_hours=None if drawn is None else _finite(drawn.quantile(0.95)),
        failures=None if hours is None else wall.interruptions,
        low_failures=None if drawn is None else _finite(drawn.interruptions(0.05)),
        high_failures=None if drawn is None else _finite(drawn.interruptions(0.95)),
        causes={} if hours is None else {str(cause): wall.share(cause) for cause in Cause},
        checkpoint_interval_hours=saves.interval_hours,
        checkpoint_seconds=saves.pause_hours * SECONDS_PER_HOUR,
        checkpoint_gb=saves.size_gb,
        write_seconds=saves.read_hours * SECONDS_PER_HOUR,
        rates=reliability.failures.source,
        mtbf_hours=1.0 / rate,
        low_mtbf_hours=1.0 / (rate * spread.factor(0.95)),
        high_mtbf_hours=1.0 / (rate * spread.factor(0.05)),
        stop_minutes=reliability.stop_hours * MINUTES_PER_HOUR,
        spare_nodes=reliability.spare_nodes,
        repair_hours=reliability.repair_hours,
        planned_stops_per_month=planned,
        low_planned_stops_per_month=planned * reliability.planned_spread.factor(0.05),
        high_planned_stops_per_month=planned * reliability.planned_spread.factor(0.95),
    )


def _assumed(found: Goodput, budget: BudgetSection) -> str | None:
    """Return what a goodput assumes, with the keys that take one's own; None where all of it is given."""
    mtbf = f"{span(found.mtbf_hours)} ({span(found.low_mtbf_hours)} to {span(found.high_mtbf_hours)})"
    low, high = found.low_planned_stops_per_month, found.high_planned_stops_per_month
    parts = [
        (
            f"a failure every {mtbf}, as {found.rates.count(',') + 1} clusters counted them",
            ["mtbf_per_gpu_hours"],
        ),
        (
            f"{found.stop_minutes:.2g} minutes to the first new step, as teams of {budget.recovery} recovery state",
            ["recovery", "detection_minutes", "restart_minutes"],
        ),
        (
            f"spare nodes that suffice 99 % of the time, up to an eighth of the job's: {found.spare_nodes}",
            ["spare_nodes"],
        ),
        (f"repairs of {found.repair_hours:g} h", ["repair_hours"]),
        (
            f"{found.planned_stops_per_month:.2g} planned stops a month ({low:.2g} to {high:.2g})",
            ["planned_stops_per_month"],
        ),
    ]
    left = [(said, keys) for said, keys in parts if any(key not in budget.model_fields_set for key in keys[-2:])]
    if not left:
        return None
    keys = ", ".join(key for _, names in left for key in names if key not in budget.model_fields_set)
    return f"Goodput assumes {'; '.join(said for said, _ in left)}. Of budget, {keys} take your own."


def goodput_notes(found: Goodput | None, budget: BudgetSection) -> list[str]:
    """Return what a goodput rests on, a sentence each; nothing of a single step."""
    if found is None:
        return []
    said = []
    if found.hours is None:
        from predictor.core.reliability.simulate import LEAST_SHARE

        said.append(
            f"The training makes no progress: less than {LEAST_SHARE:.0%} of its time is in steps that no interruption "
            "costs. Fewer GPUs, or other values of budget.mtbf_per_gpu_hours, restart_minutes, checkpoint_seconds and "
            "checkpoint_interval_minutes, change that."
        )
    assumed = _assumed(found, budget)
    if assumed is not None:
        said.append(assumed)
    given = budget.checkpoint_interval_minutes
    if given is not None and given < found.checkpoint_interval_hours * MINUTES_PER_HOUR:
        said.append(
            f"budget.checkpoint_interval_minutes is {given:g}, which is shorter than a step or than the "
            f"{found.write_seconds:.3g} s that writing a checkpoint of {found.checkpoint_gb:,.4g} GB takes: one every "
            f"{found.checkpoint_interval_hours * MINUTES_PER_HOUR:.3g} minutes is counted. budget.storage_gb_per_s "
            "takes the rate of your storage."
        )
    return said
