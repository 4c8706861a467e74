"""Predict measured steps and compare them part by part."""

from __future__ import annotations

from pathlib import Path

from predictor.core.base.errors import ConfigError
from predictor.core.plan.loading import prepare
from predictor.core.schema.inherited_keys import of_record
from predictor.core.step.prediction import predict
from predictor.core.step.stages import time_block, time_tasks
from predictor.core.workload.layer import layer_of
from predictor.core.workload.measured_kernels import on_system
from predictor.core.workload.tasks import Part
from predictor.core.workload.transformer_step import layer_block
from predictor.evidence.verification.measured import Compared, MeasuredStep


def compare(step: MeasuredStep) -> Compared:
    """Predict one measured step.

    Raises:
        ConfigError: its configuration cannot be predicted, or runs on another number of GPUs than the step did.
    """
    loaded = prepare(of_record(step.config), Path.cwd())
    num_gpus = loaded.run.layout.num_gpus
    if num_gpus != step.num_gpus:
        raise ConfigError(f"{step.label} ran on {step.num_gpus} GPUs; its configuration has {num_gpus}")
    return Compared(step, predict(loaded.run, loaded.system), loaded.system)


def components(compared: Compared) -> dict[str, list[float]]:
    """Return the predicted parts under the names of step_components.csv, in microseconds.

    Three numbers are of the first, a middle and the last stage.
    """
    prediction, system = compared.prediction, compared.system
    run = on_system(prediction.run, system)
    kind = run.kind(0)
    layer = time_block(system, layer_block(run, kind))
    first, middle, last = prediction.stages[0], prediction.stages[len(prediction.stages) // 2], prediction.stages[-1]
    ends = (first, middle, last)
    tasks = layer_of(run, kind).passes.forward.tasks
    reduce = [task._replace(times=1.0) for task in tasks if task.part is Part.TENSOR_PARALLEL]
    return {
        "encoder_fwd": [layer.forward.cost.us],
        "encoder_bwd": [layer.recompute.cost.us + layer.backward.cost.us],
        "stage_fwd": [stage.whole.forward.cost.us for stage in ends],
        "stage_bwd": [stage.whole.recompute.cost.us + stage.whole.backward.cost.us for stage in ends],
        "mp_allreduce": [time_tasks(system, reduce).us],
        "pp_p2p": [prediction.message.us],
        "dp_allreduce": [stage.reduction.us for stage in ends],
        "dp_allgather": [stage.gather.us for stage in ends],
        "optimizer": [stage.optimizer.us + stage.gather.us for stage in ends],
        "update": [prediction.step.us],
    }
