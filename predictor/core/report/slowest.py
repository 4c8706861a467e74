"""Share of a step spent waiting for the slowest GPU."""

from __future__ import annotations

from dataclasses import dataclass

from predictor.core.costs.calibration import component_of
from predictor.core.costs.published import PublishedSystem
from predictor.core.costs.slowdown import COMPUTING
from predictor.core.costs.slowest import slowdown
from predictor.core.step.prediction import Prediction


@dataclass(frozen=True, slots=True)
class SlowestRank:
    """The slowest of a run's GPUs, which all others wait for.

    Attributes:
        ranks: GPUs of the run.
        slowdown: its time of computing over the median GPU's.
        time_us: what that adds to the critical stage's step; part of forward, recompute and backward.
    """

    ranks: int
    slowdown: float
    time_us: float


def slowest_rank(prediction: Prediction, system: PublishedSystem) -> SlowestRank:
    """Return the slowest rank of a prediction on the system that timed it."""
    factor = slowdown(system)
    stage = prediction.tasks.stages[prediction.critical_stage]
    computing = sum(
        system.cost(task.operator, task.direction, task.shape).us * times
        for task, times in prediction.tasks.calls(stage)
        if component_of(task.operator, task.shape) in COMPUTING
    )
    return SlowestRank(prediction.run.layout.num_gpus, factor, computing * (1.0 - 1.0 / factor))
