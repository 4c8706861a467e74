"""A prediction as spans, for a trace file and a picture."""

from __future__ import annotations

from collections.abc import Sequence

from predictor.step.composition import Prediction, durations
from predictor.step.stages import PassTime
from predictor.timeline.graph import replay_graph
from predictor.timeline.pipeline import PASS_NAMES, Stream, pipeline_tasks
from predictor.timeline.schedules import BACKWARD, FORWARD, SCHEDULES, WEIGHT
from predictor.timeline.spans import parts_of
from predictor.timeline.step_end import ending_spans
from predictor.timeline.trace import RECOMPUTE, StepTrace
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
    """Return everything that happens in a predicted step: slots, messages, its end, and the parts of slots."""
    run, stages = prediction.run, prediction.stages
    schedule = SCHEDULES[run.schedule]
    message_us = prediction.message.us
    tasks = pipeline_tasks(
        schedule, run.num_micro_batches, *durations(prediction.tasks, stages), message_us, run.blocking_transfers
    )
    spans = replay_graph(tasks).spans
    slots = [span for span in spans if span.stream == Stream.COMPUTE]
    finished = [0.0] * len(stages)  # as the spans have it: that of the fast replay differs by rounding
    for span in spans if run.blocking_transfers else slots:
        finished[span.rank] = max(finished[span.rank], span.end_us)
    ends = ending_spans(
        finished,
        [stage.reduction.us for stage in stages],
        [stage.exposed_reduction.us for stage in stages],
        [stage.optimizer.us for stage in stages],
        [stage.gather.us for stage in stages],
    )
    parts: dict[tuple[int, object, object], list[tuple[str, float]]] = {}
    for index, stage in enumerate(stages):
        for index_in_stage, chunk in enumerate(stage.chunks):
            recomputed = [(RECOMPUTE, chunk.recompute.cost.us)] if chunk.recompute.cost.us else []
            parts[index, PASS_NAMES[FORWARD], index_in_stage] = _parts("kernels", [chunk.forward])
            parts[index, PASS_NAMES[BACKWARD], index_in_stage] = recomputed + _parts("kernels", [chunk.backward])
            parts[index, PASS_NAMES[WEIGHT], index_in_stage] = _parts("kernels", [chunk.weight])
    inside = [
        part for slot in slots for part in parts_of(slot, parts[slot.rank, slot.details["pass"], slot.details["chunk"]])
    ]
    return StepTrace(
        title=f"{run.layout.num_gpus:,} GPUs of {prediction.system}, {schedule.label}",
        step_us=prediction.step.us,
        spans=[*spans, *ends, *inside],
        blocking=run.blocking_transfers,
    )
