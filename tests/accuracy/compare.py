"""Predict measured runs and set the parts beside what was measured."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from predictor.base.bundled import REGRESSORS_FOLDER
from predictor.configuration.sections import validate
from predictor.configuration.to_run import to_run
from predictor.costs.published import open_system
from predictor.step.composition import Prediction, predict
from predictor.step.stages import time_block, time_tasks
from predictor.workloads.layer import forward_pass
from predictor.workloads.tasks import Part
from predictor.workloads.transformer_step import layer_block
from tests.accuracy.truth import MeasuredStep


@dataclass(frozen=True, slots=True)
class Compared:
    """One measured step beside its prediction, in seconds."""

    step: MeasuredStep
    prediction: Prediction

    @property
    def seconds(self) -> float:
        """Return the predicted step time."""
        return self.prediction.step.us / 1e6

    @property
    def error(self) -> float:
        """Return predicted over measured, minus one."""
        return self.seconds / self.step.seconds - 1.0

    @property
    def inside(self) -> bool:
        """Return whether the measured time lies in the predicted interval."""
        cost = self.prediction.step
        return cost.low_us <= self.step.seconds * 1e6 <= cost.high_us


def compare(step: MeasuredStep) -> Compared:
    """Predict one measured step."""
    config = validate(step.config)
    system = open_system(REGRESSORS_FOLDER / config.system, config.training.precision)
    return Compared(step, predict(to_run(config, system.system.gpus_per_node), system))


def fastest(steps: Iterable[MeasuredStep]) -> list[MeasuredStep]:
    """Return each job's fastest batch: the smallest of its rows that are a minimum."""
    best: dict[str, MeasuredStep] = {}
    for step in steps:
        if step.statistic.startswith("min") and (step.job not in best or step.seconds < best[step.job].seconds):
            best[step.job] = step
    return list(best.values())


def components(prediction: Prediction) -> dict[str, list[float]]:
    """Return the predicted parts under the names of step_components.csv, in microseconds.

    Three numbers are of the first, a middle and the last stage.
    """
    run = prediction.run
    config = REGRESSORS_FOLDER / prediction.system
    system = open_system(config, run.precision)
    kind = run.model.kind(0)
    layer = time_block(system, layer_block(run, kind))
    first, middle, last = prediction.stages[0], prediction.stages[len(prediction.stages) // 2], prediction.stages[-1]
    ends = (first, middle, last)
    tasks = forward_pass(run, kind).tasks
    reduce = [task._replace(times=1.0) for task in tasks if task.part is Part.TENSOR_PARALLEL]
    return {
        "encoder_fwd": [layer.forward.cost.us],
        "encoder_bwd": [layer.recompute.cost.us + layer.backward.cost.us],
        "stage_fwd": [stage.whole.forward.cost.us for stage in ends],
        "stage_bwd": [stage.whole.recompute.cost.us + stage.whole.backward.cost.us for stage in ends],
        "mp_allreduce": [time_tasks(system, reduce).us],
        "pp_p2p": [prediction.transfer.us],
        "dp_allreduce": [stage.reduction.us for stage in ends],
        "dp_allgather": [stage.gather.us for stage in ends],
        "optimizer": [stage.optimizer.us + stage.gather.us for stage in ends],
        "update": [prediction.step.us],
    }
