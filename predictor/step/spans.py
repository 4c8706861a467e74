"""A prediction as everything that happens in its step, for a trace file and a picture."""

from __future__ import annotations

from collections.abc import Sequence

from predictor.step.composition import Prediction, durations
from predictor.step.stages import PassTime
from predictor.timeline.record import record
from predictor.timeline.schedules import BACKWARD, FORWARD, SCHEDULES, WEIGHT, Pass
from predictor.timeline.trace import RECOMPUTE, StepTrace, step_ends
from predictor.workloads.tasks import Part

TRAFFIC_NAMES = {
    Part.TENSOR_PARALLEL: "tensor-parallel traffic",
    Part.CONTEXT_PARALLEL: "context-parallel traffic",
    Part.EXPERT_PARALLEL: "expert-parallel traffic",
    Part.PIPELINE_PARALLEL: "pipeline traffic",
    Part.DATA_PARALLEL: "data-parallel traffic",
}


def _parts(kernels: str, passes: Sequence[PassTime]) -> list[tuple[str, float]]:
    """Return what passes are made of: kernels first, then traffic, then waiting for the host."""
    whole = passes[0]
    for one in passes[1:]:
        whole = whole + one
    traffic = {part: cost.us for part, cost in whole.traffic.items() if cost.us > 0.0}
    parts = [(kernels, whole.cost.us - whole.host.us - sum(traffic.values()))]
    parts += [(TRAFFIC_NAMES[part], us) for part, us in traffic.items()]
    return [*parts, ("waiting for the host", whole.host.us)] if whole.host.us else parts


def step_trace(prediction: Prediction) -> StepTrace:
    """Return everything that happens in a predicted step."""
    run, stages = prediction.run, prediction.stages
    recording = record(
        SCHEDULES[run.schedule],
        run.num_micro_batches,
        *durations(run, stages),
        prediction.transfer.us,
        run.blocking_transfers,
    )
    parts: dict[tuple[int, Pass, int], list[tuple[str, float]]] = {}
    for index, stage in enumerate(stages):
        for chunk, piece in enumerate(stage.pieces):
            parts[index, FORWARD, chunk] = _parts("kernels", [piece.forward])
            recomputed = [(RECOMPUTE, piece.recompute.cost.us)] if piece.recompute.cost.us else []
            parts[index, BACKWARD, chunk] = recomputed + _parts("kernels", [piece.backward])
            if piece.weight.cost.us:
                parts[index, WEIGHT, chunk] = _parts("kernels", [piece.weight])
    ends = step_ends(
        recording.finished,
        [stage.reduction.us for stage in stages],
        [stage.exposed_reduction.us for stage in stages],
        [stage.optimizer.us for stage in stages],
        [stage.gather.us for stage in stages],
    )
    return StepTrace(
        title=f"{run.layout.num_gpus:,} GPUs of {prediction.system}, {SCHEDULES[run.schedule].label}",
        step_us=prediction.step.us,
        slots=recording.slots,
        messages=recording.messages,
        blocking=run.blocking_transfers,
        ends=ends,
        parts=parts,
    )
