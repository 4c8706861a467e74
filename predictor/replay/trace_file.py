"""A replayed step as a trace file, with the measured one beside it: every rank is two processes.

Categories are Kineto's, so that what shows its traces shows these too. They are not to be replayed again: several ranks
are in one file, and nothing says what an operator computes or which operators are a pass's.
"""

from __future__ import annotations

from pathlib import Path

from predictor.core.timeline.spans import Span
from predictor.core.timeline.trace import StepTrace, trace_events
from predictor.replay.answer import Replayed
from predictor.replay.files.events import REPLAY_OF, Category
from predictor.replay.graph.local_graph import TaskKind
from predictor.replay.whatif.traced_step import ADDED

CATEGORIES = {
    TaskKind.HOST: Category.OPERATOR,
    TaskKind.WAIT: Category.RUNTIME,
    TaskKind.KERNEL: Category.KERNEL,
    TaskKind.COPY: Category.COPY,
    TaskKind.COLLECTIVE: Category.KERNEL,
}
STEP_ROW = "step"


def replay_trace(replayed: Replayed, measured: Replayed) -> dict[str, object]:
    """Return a JSON object in the Trace Event Format: first the replayed ranks, then the measured ones."""
    ranks = replayed.step.ranks
    spans = _spans(replayed, 0, 0)
    spans += _spans(measured, len(ranks), len(spans))
    document = trace_events(StepTrace(f"replay of {ranks[0].label}", replayed.replay.makespan_us, spans))
    names = [f"rank {local.rank}, {how}" for how in ("replayed", "measured") for local in ranks]
    width = len(str(len(names) - 1))
    stages = {f"stage {number:0{width}}": name for number, name in enumerate(names)}
    events = document["traceEvents"]
    assert isinstance(events, list)
    for event in events:
        if event["name"] == "process_name":
            event["args"] = {"name": stages[event["args"]["name"]]}
    other = document["otherData"]
    assert isinstance(other, dict)
    other[REPLAY_OF] = [Path(str(local.facts.get("path", ""))).name for local in ranks]
    if len(ranks) == 1:
        document["distributedInfo"] = {"rank": ranks[0].rank, "world_size": ranks[0].world_size}
    return document


def _spans(replay: Replayed, first: int, base: int) -> list[Span]:
    """Return what ran, after an annotation of each rank's step; arrows within a row are left out: its order shows them.

    Args:
        replay: of all ranks.
        first: process of rank 0.
        base: spans before these, by which positions are counted.
    """
    step, timed = replay.step, replay.replay.spans
    ends = [0.0] * len(step.ranks)
    places: dict[int, int] = {}
    for position, (span, role) in enumerate(zip(timed, step.roles, strict=True)):
        if span.end_us > span.start_us and not (role.task == ADDED and role.kind is TaskKind.WAIT):
            places[position] = base + len(step.ranks) + len(places)
            ends[role.rank] = max(ends[role.rank], span.end_us)
    spans = [
        Span(local.label, first + rank, STEP_ROW, 0.0, ends[rank], (), Category.ANNOTATION)
        for rank, local in enumerate(step.ranks)
    ]
    for position in places:
        span, role = timed[position], step.roles[position]
        after = tuple(places[b] for b in span.after if b in places and timed[b].stream != span.stream)
        details = {"operator": role.operator, "pass": role.step_pass}
        on_cpu = role.kind is TaskKind.COLLECTIVE and step.ranks[role.rank].backend == "cpu"
        category = Category.OPERATOR if on_cpu else CATEGORIES[role.kind]
        spans.append(span._replace(rank=first + role.rank, after=after, category=category, details=details))
    return spans
