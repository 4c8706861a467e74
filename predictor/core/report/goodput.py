"""Goodput of a long training: what interruptions, restarts and checkpoints leave of its time."""

from __future__ import annotations

from dataclasses import dataclass
from math import isinf

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
        failures: expected in that time; None where it makes no progress.
        causes: shares of the wall time; empty where the training makes no progress.
        checkpoint_interval_hours: between checkpoints.
        checkpoint_seconds: that training waits for one.
        checkpoint_gb: that one writes.
        write_seconds: until a checkpoint is in storage, beside training.
        rates: clusters whose failures were taken, or the key that gives their rate.
    """

    share: float
    low_share: float | None
    high_share: float | None
    hours: float | None
    low_hours: float | None
    high_hours: float | None
    failures: float | None
    causes: dict[str, float]
    checkpoint_interval_hours: float
    checkpoint_seconds: float
    checkpoint_gb: float
    write_seconds: float
    rates: str


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
    return Goodput(
        share=wall.goodput,
        low_share=None if drawn is None else drawn.goodput(0.05),
        high_share=None if drawn is None else drawn.goodput(0.95),
        hours=hours,
        low_hours=None if drawn is None else _finite(drawn.quantile(0.05)),
        high_hours=None if drawn is None else _finite(drawn.quantile(0.95)),
        failures=None if hours is None else wall.interruptions,
        causes={} if hours is None else {str(cause): wall.share(cause) for cause in Cause},
        checkpoint_interval_hours=saves.interval_hours,
        checkpoint_seconds=saves.pause_hours * SECONDS_PER_HOUR,
        checkpoint_gb=saves.size_gb,
        write_seconds=saves.read_hours * SECONDS_PER_HOUR,
        rates=reliability.failures.source,
    )


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
    if budget.mtbf_per_gpu_hours is None:
        said.append(
            f"Interruptions are assumed as clusters counted them ({found.rates}), whose rates differ by several times: "
            "budget.mtbf_per_gpu_hours, detection_minutes, restart_minutes, spare_nodes and repair_hours take your own."
        )
    given = budget.checkpoint_interval_minutes
    if given is not None and given < found.checkpoint_interval_hours * MINUTES_PER_HOUR:
        said.append(
            f"budget.checkpoint_interval_minutes is {given:g}, which is shorter than a step or than the "
            f"{found.write_seconds:.3g} s that writing a checkpoint of {found.checkpoint_gb:,.4g} GB takes: one every "
            f"{found.checkpoint_interval_hours * MINUTES_PER_HOUR:.3g} minutes is counted. budget.storage_gb_per_s "
            "takes the rate of your storage."
        )
    return said
