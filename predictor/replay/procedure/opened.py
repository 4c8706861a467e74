"""Open one step of a trace: its local graph, or one line that says which other steps to try."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from predictor.core.base.errors import ConfigError
from predictor.core.timeline.graph import GraphError
from predictor.replay.files.events import Category, RankTrace
from predictor.replay.files.kineto import read_trace
from predictor.replay.files.record_model import RecordError
from predictor.replay.graph.build_graph import local_graph
from predictor.replay.graph.local_graph import NO_OPERATOR, LocalGraph, TracedOperator
from predictor.replay.graph.steps import StepWindow, step_windows

MOST_STEPS = 12  # that a message lists


@dataclass(frozen=True, slots=True)
class OpenedStep:
    """A step of one rank's trace.

    Attributes:
        path: of the trace.
        index: of the step among the trace's steps.
        local: its graph.
        notes: on what could not be read, one line each.
    """

    path: Path
    index: int
    local: LocalGraph
    notes: tuple[str, ...]


def open_step(path: Path, index: int) -> OpenedStep:
    """Return the graph of one step.

    Raises:
        ConfigError: the trace has no such step, or that step cannot be tracked; the message lists the others.
    """
    trace = read_once(path)
    windows = step_windows(trace)
    _check(path, windows, index)
    try:
        local = local_graph(trace, index if len(windows) > 1 else None)
    except (RecordError, GraphError) as error:
        raise _untrackable(path, windows, index, str(error)) from None
    if not local.tasks or not local.operators:
        raise _untrackable(path, windows, index, "it has no operators")
    return OpenedStep(path, index, with_annotations(trace, local), tuple(trace.notes) + clipping_note(trace, local))


def with_annotations(trace: RankTrace, local: LocalGraph) -> LocalGraph:
    """Return a graph whose annotated operators have the inputs, and the backward, of the kernel that they are around.

    The profiler records inputs of the dispatcher's operators only, so they are those of the operator inside that takes
    longest. Autograd ties the backward to its function, which may be around the annotation.
    """
    annotated = [
        position
        for position, operator in enumerate(local.operators)
        if trace.events[operator.event].category is Category.ANNOTATION
    ]
    operators = list(local.operators)
    longest: dict[int, TracedOperator] = {}
    for operator in local.operators:
        known = longest.get(operator.parent)
        if operator.shapes and (known is None or operator.us > known.us):
            longest[operator.parent] = operator
    moved: dict[int, int] = {}  # from the function to the annotation in it
    for position in annotated:
        operator = operators[position]
        if position in longest and not operator.shapes:
            inner = longest[position]
            operators[position] = operator._replace(shapes=inner.shapes, dtypes=inner.dtypes)
        if operator.parent != NO_OPERATOR:
            moved.setdefault(operator.parent, position)
    for position, operator in enumerate(operators):
        if operator.step_pass == "backward" and operator.forward in moved:
            operators[position] = operator._replace(forward=moved[operator.forward])
    return replace(local, operators=operators)


def read_once(path: Path) -> RankTrace:
    """Return a trace; the last ones are kept, as several steps of one are asked for in a row.

    Raises:
        RecordError: it cannot be read.
    """
    try:
        state = path.stat()
    except OSError as error:
        raise RecordError(f"{path}: {error.strerror}") from None
    return _kept(path, state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=2)
def _kept(path: Path, changed_ns: int, size: int) -> RankTrace:
    return read_trace(path)


def open_ranks(paths: Sequence[Path], index: int) -> list[OpenedStep]:
    """Return the graphs of one step of every rank."""
    return [open_step(path, index) for path in paths]


def check_step(path: Path, index: int) -> None:
    """Check that a trace has a step.

    Raises:
        ConfigError: it has not; the message lists those that it has.
    """
    _check(path, step_windows(read_once(path)), index)


def count_steps(path: Path) -> int:
    """Return how many steps a trace has."""
    return len(step_windows(read_once(path)))


def clipping_note(trace: RankTrace, local: LocalGraph) -> tuple[str, ...]:
    """Return a note where gradients are clipped: what decides on a value read back is replayed as it was traced."""
    clips = any(
        "clip_grad" in operator.name or any("clip_grad" in scope for scope in operator.scope)
        for operator in local.operators
    )
    if not clips and not any("clip_grad" in event.name for event in trace.events):
        return ()
    return (
        "gradients are clipped (clip_grad): that part is replayed as traced, in whatever precision; trace without it",
    )


def _check(path: Path, windows: Sequence[StepWindow], index: int) -> None:
    if not 0 <= index < len(windows):
        count = len(windows)
        raise ConfigError(
            f"--target_trace_idx is {index}; {path.name} has {count} step{'s' if count > 1 else ''}: {_listed(windows)}"
        )


def _listed(windows: Sequence[StepWindow], without: int | None = None) -> str:
    names = [f"{at} ({window.label})" for at, window in enumerate(windows) if at != without]
    more = [f"… {len(names) - MOST_STEPS} more"] if len(names) > MOST_STEPS else []
    return ", ".join([*names[:MOST_STEPS], *more])


def _untrackable(path: Path, windows: Sequence[StepWindow], index: int, reason: str) -> ConfigError:
    way_out = (
        f"try another --target_trace_idx: {_listed(windows, index)}"
        if len(windows) > 1
        else "it is the only step; record a trace of several"
    )
    return ConfigError(f"step {index} of {path.name} cannot be tracked: {reason}; {way_out}")
