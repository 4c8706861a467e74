"""What started what: kernels by their runtime calls, collectives of worker threads by their operators."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from predictor.replay.files.events import ON_GPU, UNKNOWN, Category, RankTrace, TraceEvent
from predictor.replay.graph.step_events import C10D, worker_collectives

RUN_AS = {"allreduce": ("reducescatter",)}  # gloo reduces all and keeps a part


def ties(trace: RankTrace) -> dict[int, int]:
    """Return, of each GPU task and each collective of a worker thread, the position of what started it.

    A GPU task has a launch arrow from its runtime call; where the calls were not recorded, the external number of its
    operator. Workers take collectives in the order in which operators gave them.
    """
    events = trace.events
    by = {
        after: before
        for before, after, kind in trace.arrows
        if kind == "launch" and events[before].start_us <= events[after].end_us
    }
    operators: dict[int, int] = {}
    for position, event in enumerate(events):
        if event.category in ON_GPU:
            if position not in by and event.external in operators:
                by[position] = operators[event.external]
        elif event.category is Category.OPERATOR and event.external != UNKNOWN:
            operators[event.external] = position
    by.update(_ties_of_workers(events, worker_collectives(events)))
    return by


def _ties_of_workers(events: Sequence[TraceEvent], given: Sequence[int]) -> dict[int, int]:
    """Return the operators of workers' collectives.

    Of each collective it is the first operator before it of its kind that has none yet: of its size, if there is one.
    An all-gather says the size of its input here and of its output there.
    """
    waiting: defaultdict[str, list[int]] = defaultdict(list)
    for position, event in enumerate(events) if given else ():
        if event.category is Category.OPERATOR and event.name.startswith(C10D):
            waiting[_kind(event.name)].append(position)
    by = {}
    for position in given:
        event = events[position]
        kind, numel = _kind(event.name), _numel(event)
        for name in (kind, *RUN_AS.get(kind, ())):
            before = [call for call in waiting[name] if events[call].start_us <= event.start_us]
            if before:
                by[position] = next((call for call in before if _numel(events[call]) == numel), before[0])
                waiting[name].remove(by[position])
                break
    return by


def _kind(name: str) -> str:
    """Return what a collective is, of ``c10d::allreduce_`` and ``gloo:all_reduce`` alike."""
    return name.rsplit(":", 1)[-1].replace("_", "").removesuffix("base").removesuffix("coalesced")


def _numel(event: TraceEvent) -> int:
    """Return the elements of a collective's first tensor; 0 where the trace does not say."""
    dims: object = event.args.get("Input Dims")
    while isinstance(dims, list) and dims and isinstance(dims[0], list):
        dims = dims[0]
    if not isinstance(dims, list) or not dims or not all(isinstance(size, int) for size in dims):
        return 0
    numel = 1
    for size in dims:
        numel *= size
    return numel
