"""The steps of a trace: when they began and ended on the host, and which to replay.

PyTorch's profiler annotates every step that its ``step()`` counts (« ProfilerStep#551 »). Where it was not called, the
loop's own annotations delimit steps, else the ends of ``Optimizer.step``; a trace with neither is replayed as a whole.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

from predictor.replay.files.events import Category, RankTrace, TraceEvent
from predictor.replay.files.record_model import RecordError

WHOLE_TRACE = "whole trace"
PROFILER_STEP = re.compile(r"ProfilerStep#?\s*(\d+)")
ITERATION = re.compile(
    r"(?:\[pl\]\[profile\])?\W*((?:train(?:ing)?[ _-]?)?(?:iter(?:ation)?|step|batch)|run_training_batch)"
    r"[ #_:=-]*\d*\W*",
    re.IGNORECASE,
)
OPTIMIZER_STEP = "Optimizer.step#"
BACKWARD = re.compile(r"Backward\d*$|^autograd::engine::evaluate_function")
LEAST_SHARE = 0.5  # of the work of the largest step, below which a step is taken for cut off
# Before 1.10 the profiler gave annotations the category of operators.
ANNOTATIONS = frozenset({Category.ANNOTATION, Category.OPERATOR, Category.OTHER})


class StepWindow(NamedTuple):
    """When a step began and ended on the host; microseconds from the trace's first event."""

    label: str
    start_us: float
    end_us: float


def step_windows(trace: RankTrace) -> list[StepWindow]:
    """Return the steps of a trace in their order, at least one."""
    names = {event.name for event in trace.events}
    windows = _annotated(_named(trace, {name for name in names if PROFILER_STEP.fullmatch(name)}))
    if not windows:
        events = _named(trace, {name for name in names if ITERATION.fullmatch(name)})
        windows = _iterations([event for event in events if event.category is Category.ANNOTATION])
    if not windows:
        windows = _until_optimizer(_named(trace, {name for name in names if name.startswith(OPTIMIZER_STEP)}))
    return windows or [StepWindow(WHOLE_TRACE, 0.0, max(event.end_us for event in trace.events))]


def choose_step(trace: RankTrace, index: int | None = None) -> StepWindow:
    """Return the step to replay.

    Without an index it is the last whole step that contains a backward pass, or the last whole step where none does. A
    step counts as whole if it has at least half as many operators and kernels as the largest: profilers start and stop
    within a step, and what they record of it then is a stub, such as the microseconds after the last ``step()``.

    Args:
        trace: of one rank.
        index: position in ``step_windows``; a negative one counts from the last.

    Raises:
        RecordError: there is no such step; the message lists the steps.
    """
    windows = step_windows(trace)
    if index is None:
        return windows[max(_whole(trace, windows))]
    _check_index(trace, index, [window.label for window in windows])
    return windows[index]


def choose_steps(traces: Sequence[RankTrace], index: int | None = None) -> list[StepWindow]:
    """Return the window of one step on every rank: that of the same label.

    Without an index it is the last step that ``choose_step`` could take on all ranks, or on most of them. Where the
    traces have no label in common, ``choose_step`` chooses in each.

    Args:
        traces: of the ranks of one job.
        index: position among the steps that all ranks have, in the order of the first one; a negative one counts from
            the last.

    Raises:
        RecordError: there is no such step; the message lists the steps.
    """
    by_label = [{window.label: window for window in step_windows(trace)} for trace in traces]
    labels = [label for label in by_label[0] if all(label in windows for windows in by_label)]
    if len(traces) == 1 or not labels:
        return [choose_step(trace, index) for trace in traces]
    if index is None:
        whole: Counter[str] = Counter()
        for trace, windows in zip(traces, by_label, strict=True):
            listed = list(windows.values())
            whole.update(listed[number].label for number in _whole(trace, listed))
        label = max(enumerate(labels), key=lambda numbered: (whole[numbered[1]], numbered[0]))[1]
    else:
        _check_index(traces[0], index, labels, " in common with the other ranks")
        label = labels[index]
    return [windows[label] for windows in by_label]


def _check_index(trace: RankTrace, index: int, labels: Sequence[str], beside: str = "") -> None:
    """Check that there is a step of this position.

    Raises:
        RecordError: there is none.
    """
    if not -len(labels) <= index < len(labels):
        shown = [f"{number} ({label})" for number, label in enumerate(labels)]
        listed = shown if len(shown) <= 12 else [*shown[:6], "…", *shown[-3:]]
        raise RecordError(f"{trace.path} has no step {index}; it has {', '.join(listed)}{beside}")


def _named(trace: RankTrace, names: Container[str]) -> list[TraceEvent]:
    """Return the annotations of these names on threads."""
    return [
        event
        for event in trace.events
        if event.name in names and event.category in ANNOTATIONS and not trace.rows[event.row].is_gpu
    ]


def _annotated(events: Iterable[TraceEvent]) -> list[StepWindow]:
    """Return annotations as steps, each label once, without those inside of another one."""
    windows: list[StepWindow] = []
    labels: set[str] = set()
    for event in events:
        if event.name not in labels and _add(windows, event.name, event):
            labels.add(event.name)
    return windows


def _add(windows: list[StepWindow], label: str, event: TraceEvent) -> bool:
    """Add a step, unless it is inside of the one before; one that overlaps it ends it."""
    if windows:
        before = windows[-1]
        if event.end_us <= before.end_us:
            return False
        windows[-1] = before._replace(end_us=min(before.end_us, event.start_us))
    windows.append(StepWindow(label, event.start_us, event.end_us))
    return True


def _iterations(events: Iterable[TraceEvent]) -> list[StepWindow]:
    """Return the steps that a training loop annotated itself: at least two of one word, or one with a number."""
    by_word: defaultdict[str, list[TraceEvent]] = defaultdict(list)
    for event in events:
        match = ITERATION.fullmatch(event.name)
        if match:
            by_word[match[1].lower()].append(event)
    for repeated in by_word.values():
        windows: list[StepWindow] = []
        names = {event.name for event in repeated}
        for event in repeated:
            _add(windows, event.name if len(names) == len(repeated) else f"{event.name} {len(windows)}", event)
        if len(windows) > 1 or any(character.isdigit() for character in windows[0].label):
            return windows
    return []


def _until_optimizer(events: Sequence[TraceEvent]) -> list[StepWindow]:
    """Return the time up to the end of each optimizer's step; of several optimizers the last one ends the step."""
    if not events:
        return []
    closing = max(events, key=lambda event: event.end_us).name
    ends = sorted({event.end_us for event in events if event.name == closing})
    name = closing.removeprefix(OPTIMIZER_STEP)
    return [
        StepWindow(f"step {number} (to {name})", start, end)
        for number, (start, end) in enumerate(zip([0.0, *ends], ends, strict=False))
    ]


def _whole(trace: RankTrace, windows: Sequence[StepWindow]) -> list[int]:
    """Return the positions of whole steps, with a backward pass where any has one; see ``choose_step``."""
    streams = [row.is_gpu for row in trace.rows]
    work = [event for event in trace.events if event.category is Category.OPERATOR or streams[event.row]]
    starts = [event.start_us for event in work]
    names = {name for name in {event.name for event in work} if BACKWARD.search(name)}
    backward = [0, *accumulate(event.name in names for event in work)]
    places = [(bisect_left(starts, window.start_us), bisect_left(starts, window.end_us)) for window in windows]
    counts = [end - begin for begin, end in places]
    trains = [backward[end] > backward[begin] for begin, end in places]
    candidates = [number for number in range(len(windows)) if trains[number]] or list(range(len(windows)))
    most = max(counts[number] for number in candidates)
    return [number for number in candidates if counts[number] >= LEAST_SHARE * most]
