"""How long a training may take: draws of its wall time, of the step's error and of what happens on the way.

What a step takes beyond its prediction is systematic: it is drawn once per training, not per step, and ramp-up and
evaluation err with it. Draws are stratified: each takes its own stratum of the step's distribution.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf, isinf
from statistics import pvariance

from predictor.core.base.quantities import HOURS_PER_DAY
from predictor.core.hardware.hardware import System
from predictor.core.reliability import job as reliability_job
from predictor.core.reliability.checkpointing import Checkpointing, checkpointing_of
from predictor.core.reliability.new_cluster import KNOWN
from predictor.core.reliability.reliability import Reliability, reliability_of
from predictor.core.reliability.simulate import simulate
from predictor.core.reliability.wall_times import WallTimes
from predictor.core.report.budget import equally_likely
from predictor.core.schema.sections import BudgetSection
from predictor.training_plan.question import Purchase
from predictor.training_plan.work import Work

LOW, HIGH = 0.05, 0.95  # ends of the 90 % interval


@dataclass(frozen=True, slots=True)
class Simulation:
    """What a training is simulated with.

    Attributes:
        job: as the room of reliability knows it; its hours are drawn.
    """

    job: reliability_job.Job
    reliability: Reliability
    checkpointing: Checkpointing


def simulation_of(
    work: Work, num_gpus: int, system: System, budget: BudgetSection, purchase: Purchase, hours: list[float]
) -> Simulation:
    """Return what a training is simulated with: failures, spares, checkpoints, planned stops, and what spot takes away.

    Args:
        work: without interruptions.
        num_gpus: of the run.
        system: that it runs on.
        budget: rates and times that are known.
        purchase: how its GPUs are paid for; a spot instance that is taken away stops the run as a failure does, and
            another takes its place.
        hours: draws of its productive hours.
    """
    whole = reliability_job.Job(
        num_gpus, system.gpus_per_node, hours, work.gpu_bytes, work.checkpoint_bytes, work.step.us / 1e6
    )
    found = reliability_of(budget, system, whole.num_nodes)
    if purchase.interruptions_per_node_day is not None:
        taken = purchase.interruptions_per_node_day / HOURS_PER_DAY / system.gpus_per_node
        found = replace(found, taken_per_gpu_hour=taken)
    return Simulation(whole, found, checkpointing_of(whole, found, budget, system))


@dataclass(frozen=True, slots=True)
class Outlook:
    """Draws of a training's wall time, and what moves it.

    Attributes:
        walls: draws.
        simulation: what they were drawn of.
    """

    walls: WallTimes
    simulation: Simulation

    def chance_within(self, hours: float | None) -> float:
        """Return the probability that the training ends within so many hours; 1 without a limit, if it ends."""
        return self.walls.chance_within(sys.float_info.max if hours is None else hours)


def outlook(
    work: Work, num_gpus: int, system: System, budget: BudgetSection, purchase: Purchase, draws: int, seed: int
) -> Outlook:
    """Draw a training's wall time."""
    step = work.step
    hours_per_us = work.hours / step.us
    hours = equally_likely(work.hours, step.low_us * hours_per_us, step.high_us * hours_per_us, draws)
    found = simulation_of(work, num_gpus, system, budget, purchase, hours)
    return Outlook(_drawn(found, seed), found)


def _drawn(found: Simulation, seed: int) -> WallTimes:
    return simulate(found.job, found.reliability, found.checkpointing, seed, len(_hours(found)))


def _steady(found: Simulation) -> Simulation:
    return replace(found, job=replace(found.job, productive_hours=[found.job.hours] * len(_hours(found))))


def _hours(found: Simulation) -> list[float]:
    hours = found.job.productive_hours
    return [hours] if isinstance(hours, int | float) else list(hours)


def _of_reliability(**values: object) -> Callable[[Simulation], Simulation]:
    return lambda found: replace(found, reliability=replace(found.reliability, **values))  # type: ignore[arg-type]


def _of_known_rate(found: Simulation) -> Simulation:
    reliability = found.reliability
    known = replace(reliability, failures=replace(reliability.failures, spread=KNOWN), monthly_scatter=0.0)
    return replace(found, reliability=known)


# What a cause is called, and the same training without its uncertainty.
FROZEN: dict[str, Callable[[Simulation], Simulation]] = {
    "the step's time": _steady,
    "how often this cluster fails": _of_known_rate,
    "how long a stop takes": _of_reliability(stop_spread=KNOWN, stop_variation=0.0),
    "waiting for spare nodes": _of_reliability(removed=0.0),
    "planned stops": _of_reliability(planned_per_hour=0.0),
}


def contributions(outlook: Outlook, seed: int) -> dict[str, float]:
    """Return the share of the variance of the wall time that goes where a cause is known, the largest first.

    Shares of causes that act together overlap, so that they need not add up to 1: it is a total effect each. Source:
    Homma and Saltelli 1996, doi:10.1016/0951-8320(96)00002-6. Empty where some draws never end.
    """
    whole = [draw.hours for draw in outlook.walls.draws]
    variance = inf if any(map(isinf, whole)) else pvariance(whole)
    if isinf(variance) or variance <= 0.0:
        return {}
    found = {}
    for name, freeze in FROZEN.items():
        rest = [draw.hours for draw in _drawn(freeze(outlook.simulation), seed).draws]
        found[name] = max(1.0 - pvariance(rest) / variance, 0.0)
    return dict(sorted(found.items(), key=lambda each: -each[1]))
