"""A prediction as one dependency graph, and its spans for a trace file and a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from predictor.core.base.collector import paused_collector
from predictor.core.base.words import counted
from predictor.core.step.composition import StepTime, durations
from predictor.core.step.prediction import Prediction
from predictor.core.step.stages import PassTime, hidden_reduction_us
from predictor.core.step.traffic_details import with_traffic
from predictor.core.timeline.graph import GraphTask, replay_graph
from predictor.core.timeline.pipeline import PASS_NAMES, Stream, pipeline_tasks, starts_of_slot
from predictor.core.timeline.schedules import BACKWARD, FORWARD, SCHEDULES, WEIGHT
from predictor.core.timeline.spans import parts_of
from predictor.core.timeline.step_end import StageEnd, ending_tasks
from predictor.core.timeline.trace import RECOMPUTE, StepTrace
from predictor.core.workload.tasks import Part

KERNELS = "kernels"
TRAFFIC_NAMES = {
    Part.TENSOR_PARALLEL: "tensor-parallel traffic",
    Part.CONTEXT_PARALLEL: "context-parallel traffic",
    Part.EXPERT_PARALLEL: "expert-parallel traffic",
    Part.PIPELINE_PARALLEL: "pipeline traffic",
    Part.DATA_PARALLEL: "data-parallel traffic",
    Part.EMBEDDING_EXCHANGE: "embedding exchange",
    Part.INPUT: "input",
    Part.HOST_LINK: "host-link traffic",
}
SlotKind = tuple[int, object, object]  # stage, pass, chunk


def pass_parts(step_pass: PassTime) -> list[tuple[str, float]]:
    """Return what a pass is made of: kernels first, then exposed traffic, then waiting for the host."""
    traffic = [(TRAFFIC_NAMES[part], cost.us) for part, cost in step_pass.traffic.items() if cost.us > 0.0]
    kernels = step_pass.cost.us - step_pass.host.us - sum(us for _, us in traffic)
    return [(KERNELS, kernels), *traffic, ("waiting for the host", step_pass.host.us)]


def _slot_passes(timed: StepTime) -> dict[SlotKind, tuple[PassTime, ...]]:
    """Return the passes that every kind of slot runs."""
    passes: dict[SlotKind, tuple[PassTime, ...]] = {}
    for stage, stage_time in enumerate(timed.stages):
        for index, chunk in enumerate(stage_time.chunks):
            passes[stage, PASS_NAMES[FORWARD], index] = (chunk.forward,)
            passes[stage, PASS_NAMES[BACKWARD], index] = (chunk.recompute, chunk.backward)
            passes[stage, PASS_NAMES[WEIGHT], index] = (chunk.weight,)
    return passes


def _hidden_traffic(
    slots: Sequence[GraphTask], passes: Mapping[SlotKind, tuple[PassTime, ...]], first: int
) -> list[GraphTask]:
    """Return the traffic that slots hide, as tasks that start with their slot and follow one another.

    It ends with its slot at the latest, or where the backward pass is split with the weight gradient. Which of the
    slot's tasks it runs beside is not shown.

    Args:
        slots: the first tasks of the graph.
        passes: of every kind of slot.
        first: position of the first task returned.
    """
    hidden = {
        kind: [
            (TRAFFIC_NAMES[part], cost.us)
            for step_pass in of_slot
            for part, cost in step_pass.hidden.items()
            if cost.us > 0.0
        ]
        for kind, of_slot in passes.items()
    }
    tasks: list[GraphTask] = []
    for position, slot in enumerate(slots):
        after = tuple(dict.fromkeys(starts_of_slot(slots, position)))
        for name, us in hidden[slot.rank, slot.details["pass"], slot.details["chunk"]]:
            stream = Stream.COMMUNICATION
            tasks.append(GraphTask(name, slot.rank, stream, us, after, (), False, stream, slot.details))
            after = (first + len(tasks) - 1,)
    return tasks


def step_graph(timed: StepTime) -> list[GraphTask]:
    """Return a predicted step as one dependency graph, whose replay ends when the step does.

    Slots come first, then messages, the traffic that slots hide, and the end of the step. ``predict`` composes the same
    step from the fast special cases: ``replay``, ``left_over`` and ``end_of_step``.
    """
    step, stages = timed.tasks, timed.stages
    blocking = step.blocking_transfers
    slots_us, message_us = durations(step, stages), timed.message.us
    tasks = pipeline_tasks(SCHEDULES[step.schedule], step.num_micro_batches, *slots_us, message_us, blocking)
    slots = [task for task in tasks if task.stream == Stream.COMPUTE]
    tasks += _hidden_traffic(slots, _slot_passes(timed), len(tasks))
    ends = [
        StageEnd(
            reduction=stage_time.reduction.us,
            buckets=stage.end.buckets if step.overlap_gradient_reduction else 1,
            hidden=hidden_reduction_us(stage_time),
            slowed=stage_time.slowed.us,
            tied=stage_time.tied.us,
            optimizer=stage_time.optimizer.us,
            gather=stage_time.gather.us,
            hidden_gather=stage_time.hidden_gather.us,
            update_parts=stage_time.update_parts,
        )
        for stage_time, stage in zip(stages, step.stages, strict=True)
    ]
    return tasks + ending_tasks(tasks, ends, blocking)


def step_trace(prediction: Prediction) -> StepTrace:
    """Return everything that happens in a predicted step of a transformer."""
    return timed_trace(prediction, f"{counted(prediction.run.layout.num_gpus, 'GPU')} of {prediction.system}")


@paused_collector()
def timed_trace(timed: StepTime, where: str) -> StepTrace:
    """Return everything that happens in a predicted step: the spans of its graph, and the parts of slots.

    Args:
        timed: the step.
        where: it runs, for the title.
    """
    step = timed.tasks
    spans = with_traffic(replay_graph(step_graph(timed)).spans, step, TRAFFIC_NAMES)
    parts = {
        kind: [*((RECOMPUTE, recompute.cost.us) for recompute in passes[:-1]), *pass_parts(passes[-1])]
        for kind, passes in _slot_passes(timed).items()
    }
    slots = [span for span in spans if span.stream == Stream.COMPUTE]
    inside = [
        part for slot in slots for part in parts_of(slot, parts[slot.rank, slot.details["pass"], slot.details["chunk"]])
    ]
    return StepTrace(
        title=f"{where}, {SCHEDULES[step.schedule].label}",
        step_us=timed.modelled_us,
        spans=[*spans, *inside],
        blocking=step.blocking_transfers,
    )
