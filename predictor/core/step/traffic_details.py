"""Collectives and bytes per rank, attached to communication spans."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from predictor.core.costs.collectives import COLLECTIVES
from predictor.core.timeline.pipeline import PASS_NAMES, Stream
from predictor.core.timeline.schedules import BACKWARD, FORWARD, WEIGHT
from predictor.core.timeline.spans import Span
from predictor.core.timeline.step_end import SLOWED
from predictor.core.workload.step_tasks import BlockTasks, ChunkTasks, EndTasks, StepTasks
from predictor.core.workload.tasks import Part, PassTasks, Task

Details = Mapping[str, object]
PASSES: Mapping[str, Callable[[BlockTasks], tuple[PassTasks, ...]]] = {
    PASS_NAMES[FORWARD]: lambda block: (block.forward,),
    PASS_NAMES[BACKWARD]: lambda block: (block.recompute, block.backward),
    PASS_NAMES[WEIGHT]: lambda block: (),
}


def traffic_details(tasks: Iterable[tuple[Task, float]]) -> Details:
    """Return how often tasks call which collectives, and the bytes that a rank sends; each task so many times."""
    calls: Counter[str] = Counter()
    size_bytes = 0.0
    for task, count in tasks:
        if task.operator.name not in COLLECTIVES:  # kernels around a collective
            continue
        calls[task.operator.name] += round(task.times * count)
        size_bytes += task.operator.work(task.shape, task.direction, 1).size_bytes * task.times * count
    return {"collectives": dict(calls), "sent_bytes": round(size_bytes)} if calls else {}


def _overlapped(chunk: ChunkTasks, step_pass: str, part: Part) -> Details:
    """Return what the traffic of a kind sends beside a pass of one micro-batch, hidden or not."""
    return traffic_details(
        (task, count)
        for block, count in chunk.blocks
        for tasks in PASSES[step_pass](block)
        for overlap in tasks.overlaps
        for task in overlap.traffic
        if task.part is part
    )


def _at_end(end: EndTasks, name: str) -> Details:
    """Return what the traffic of a name at a step's end sends, all its parts together."""
    if name == SLOWED:
        return {}
    if name.startswith("gradient reduction"):
        return traffic_details((task, 1.0) for task in end.reduction)
    return traffic_details((task, 1.0) for task in (end.gather if name.startswith("parameter gather") else end.tied))


def with_traffic(spans: Iterable[Span], step: StepTasks, part_names: Mapping[Part, str]) -> list[Span]:
    """Return spans, those of traffic with what it sends in their details.

    Traffic whose parts are spans of their own (hidden and exposed, first and last buckets) has the sum in each.

    Args:
        spans: of a step.
        step: its tasks.
        part_names: names of the spans of traffic beside passes.
    """
    parts = {name: part for part, name in part_names.items()}
    message = traffic_details((task, 1.0) for task in step.message)
    known: dict[tuple[object, ...], Details] = {}
    told = []
    for span in spans:
        details: Details = {}
        if span.stream in (Stream.SEND, Stream.RECEIVE):
            details = message
        elif span.stream == Stream.COMMUNICATION:
            chunk, step_pass = int(str(span.details["chunk"])), str(span.details["pass"])
            key = (span.rank, chunk, step_pass, span.name)
            if key not in known:
                known[key] = _overlapped(step.stages[span.rank].chunks[chunk], step_pass, parts[span.name])
            details = known[key]
        elif span.stream == Stream.REDUCTION:
            details = _at_end(step.stages[span.rank].end, span.name)
        told.append(span._replace(details={**span.details, **details}) if details else span)
    return told
