"""Events of one step: host events between its borders, and the GPU events they start.

A GPU runs behind its host. Kernels that the step launched belong to it even if they end after the host has begun the
next one, and kernels of the step before that still run at its start only delay it. So do kernels that were launched
before the trace began.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from predictor.replay.files.events import ON_GPU, UNKNOWN, Category, RankTrace, TraceEvent

ON_HOST = frozenset({Category.OPERATOR, Category.ANNOTATION, Category.RUNTIME, Category.PYTHON})
MODULE = "nn.Module: "  # how the profiler names the Python call of a module
WORKERS = ("gloo:", "mpi:", "ucc:")  # collectives that threads of a backend run, of which it says when they did
STEP = "ProfilerStep"  # of the annotations of steps
C10D = "c10d::"  # of operators that give collectives
BEFORE_THE_TRACE_US = -1.0  # on the clock of a trace, which begins at 0
AUTOGRAD = "autograd::engine::"


def worker_collectives(events: Sequence[TraceEvent]) -> list[int]:
    """Return the positions of the collectives that threads of gloo, MPI or UCC run.

    A thread on which operators start such a collective, or that trains, is none of theirs: there it is an annotation.
    """
    named = [position for position, event in enumerate(events) if event.name.startswith(WORKERS)]
    if not named:
        return []
    others = {event.row for event in events if event.name.startswith((STEP, AUTOGRAD, C10D))}
    return [position for position in named if events[position].row not in others]


class Carried(NamedTuple):
    """What an earlier step launched and what ran when this one began, or after.

    Attributes:
        given_us: when it was launched, on the clock of the trace; its begin where that is unknown.
        position: in the trace's events.
    """

    given_us: float
    position: int


@dataclass(slots=True)
class StepEvents:
    """The events of one step, as positions in the trace.

    Attributes:
        label: of the step.
        start_us: on the clock of the trace.
        end_us: when the host ended it, likewise.
        main_row: thread that the step runs on; UNKNOWN where the trace has no thread.
        host: by thread, what it did, by start, those that enclose others first.
        gpu: by stream, what the step launched on it, by start.
        workers: by thread, collectives that it ran, by start.
        launched_by: of a GPU task the runtime call, or operator, that started it, and of a worker's collective the
            operator; what the trace does not tie is absent.
        carried: by stream or worker's thread, what earlier steps had given it, by start.
        carried_us: likewise, when it ended that, in µs from the start.
    """

    label: str
    start_us: float
    end_us: float
    main_row: int
    host: dict[int, list[int]] = field(default_factory=dict)
    gpu: dict[int, list[int]] = field(default_factory=dict)
    workers: dict[int, list[int]] = field(default_factory=dict)
    launched_by: dict[int, int] = field(default_factory=dict)
    carried: dict[int, list[Carried]] = field(default_factory=dict)
    carried_us: dict[int, float] = field(default_factory=dict)


def step_events(trace: RankTrace, label: str, start_us: float, end_us: float, ties: Mapping[int, int]) -> StepEvents:
    """Return the events of the step between two times of the trace's clock.

    Args:
        trace: of a rank.
        label: of the step.
        start_us: when the host began it.
        end_us: when the host ended it.
        ties: what started each GPU task and each worker's collective (``launches.ties``).
    """
    host: defaultdict[int, list[int]] = defaultdict(list)
    step = StepEvents(label, start_us, end_us, UNKNOWN)
    events = trace.events
    collectives = set(worker_collectives(events))
    workers = {events[position].row for position in collectives}
    first_launched: dict[int, int] = {}
    for position in ties:
        row = events[position].row
        first_launched[row] = min(position, first_launched.get(row, position))
    for position, event in enumerate(events):
        category = event.category
        if category in ON_GPU or position in collectives:
            call = ties.get(position, UNKNOWN)
            given_us = events[call].start_us if call != UNKNOWN else event.start_us
            if position < first_launched.get(event.row, UNKNOWN):
                given_us = BEFORE_THE_TRACE_US
            _take_started(step, events, position, call, given_us)
            continue
        is_within = event.start_us < end_us and event.end_us > start_us
        is_of_thread = category in ON_HOST and event.row not in workers  # there, parts of collectives
        if is_within and is_of_thread and (category is not Category.PYTHON or event.name.startswith(MODULE)):
            host[event.row].append(position)
    step.host = dict(host)
    step.main_row = _main_row(events, host, label)
    return step


def _take_started(step: StepEvents, events: Sequence[TraceEvent], position: int, call: int, given_us: float) -> None:
    """Add a GPU task or a worker's collective to the step, or to what earlier steps left to do."""
    event = events[position]
    if given_us >= step.end_us:
        return
    if given_us < step.start_us:
        if event.end_us > step.start_us:
            carried = round(event.end_us - step.start_us, 3)
            step.carried_us[event.row] = max(carried, step.carried_us.get(event.row, 0.0))
            step.carried.setdefault(event.row, []).append(Carried(given_us, position))
        return
    rows = step.gpu if event.category in ON_GPU else step.workers
    rows.setdefault(event.row, []).append(position)
    if call != UNKNOWN:
        step.launched_by[position] = call


def _main_row(events: Sequence[TraceEvent], host: Mapping[int, Sequence[int]], label: str) -> int:
    """Return the thread with the step's annotation, or else the one that works longest and is not autograd's."""
    busy_us: dict[int, float] = {}
    for row, positions in host.items():
        works = end = 0.0
        for position in positions:
            event = events[position]
            if event.name == label and event.category is Category.ANNOTATION:
                return row
            if event.start_us >= end:
                works += event.end_us - event.start_us
                end = event.end_us
        is_autograd = any(events[position].name.startswith(AUTOGRAD) for position in positions[:20])
        busy_us[row] = works if not is_autograd else -1.0 / (1.0 + works)
    return max(busy_us, key=busy_us.__getitem__, default=UNKNOWN)
