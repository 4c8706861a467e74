"""Traced operators: how they nest, which pass they belong to, and which backward belongs to which forward."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from predictor.traces.events import UNKNOWN, Category, RankTrace, TraceEvent
from predictor.traces.host_threads import Thread
from predictor.traces.local_graph import NO_OPERATOR, OperatorPass
from predictor.traces.step_events import AUTOGRAD, StepEvents

STEP = "ProfilerStep#"
OPTIMIZER = ("Optimizer.step#", "Optimizer.zero_grad#")
FORWARD_THREAD = "Fwd thread id"
BACKWARD_NAME = re.compile(r"(\w+?)(Backward\w*)$")
NAMED_LIKE_AN_OPERATOR = re.compile(r"[A-Za-z_]\w*(::[A-Za-z_]\w*)+$")
GRADIENT = "torch::autograd::AccumulateGrad"


def is_operator(event: TraceEvent) -> bool:
    """Return whether an event is an operator: the dispatcher's, autograd's, or a range named like one.

    Kernels of one's own have no operator of the dispatcher; ``torch.profiler.record_function("qsync::linear_fp32")``
    around them makes them one.
    """
    if event.category is Category.OPERATOR:
        return True
    return event.category is Category.ANNOTATION and NAMED_LIKE_AN_OPERATOR.match(event.name) is not None


@dataclass(slots=True)
class OperatorTable:
    """The operators of a step, by start; every list is parallel to ``events``.

    Attributes:
        events: their positions in the trace.
        rows: threads they ran on.
        parents: the operator around each; NO_OPERATOR: none.
        scopes: annotations and modules around each, outermost first.
        passes: where in the step.
        forwards: of backward operators, the forward one; NO_OPERATOR: none or unknown.
        of_event: the operator that an event is, or is in.
    """

    events: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    scopes: list[tuple[str, ...]] = field(default_factory=list)
    passes: list[OperatorPass] = field(default_factory=list)
    forwards: list[int] = field(default_factory=list)
    of_event: dict[int, int] = field(default_factory=dict)


def operator_table(trace: RankTrace, step: StepEvents, threads: Sequence[Thread]) -> OperatorTable:
    """Return the operators of a step."""
    table = OperatorTable()
    events = trace.events
    around: dict[int, int] = {}
    row_of: dict[int, int] = {}
    for thread in threads:
        around |= thread.around
        row_of |= dict.fromkeys(thread.frames, thread.row)
    scopes: dict[int, tuple[str, ...]] = {UNKNOWN: ()}  # of an event, itself included
    for frame in sorted(row_of):
        event, outer = events[frame], around[frame]
        parent = table.of_event.get(outer, NO_OPERATOR)
        if is_operator(event):
            table.of_event[frame] = len(table.events)
            table.events.append(frame)
            table.rows.append(row_of[frame])
            table.parents.append(parent)
            table.scopes.append(scopes[outer] + _hierarchy(event))
            scopes[frame] = scopes[outer]
        else:
            if parent != NO_OPERATOR:
                table.of_event[frame] = parent
            is_scope = event.category is not Category.RUNTIME and not event.name.startswith(STEP)
            scopes[frame] = (*scopes[outer], event.name) if is_scope else scopes[outer]
    table.forwards = _forwards(trace, table)
    table.passes = _passes(events, step, table)
    return table


def _hierarchy(event: TraceEvent) -> tuple[str, ...]:
    """Return the modules that an operator says it is in."""
    hierarchy = event.args.get("Module Hierarchy")
    return tuple(hierarchy.split(".")) if isinstance(hierarchy, str) and hierarchy else ()


def is_backward(event: TraceEvent) -> bool:
    """Return whether autograd's engine runs this operator."""
    if event.name.startswith(AUTOGRAD) or event.name.startswith(GRADIENT):
        return True
    thread = event.args.get(FORWARD_THREAD)
    if isinstance(thread, int) and thread > 0:
        return True
    return event.sequence != UNKNOWN and "::" not in event.name and BACKWARD_NAME.match(event.name) is not None


def _forwards(trace: RankTrace, table: OperatorTable) -> list[int]:
    """Tie backward operators to forward ones; those inside a backward operator to the same one.

    The profiler's arrows come first. Without them the sequence number ties: operators that autograd did not record
    bear the number of the next one that it does, so of several the one whose name fits wins, then the last.
    """
    events = trace.events
    recorded: defaultdict[int, list[int]] = defaultdict(list)
    backward = []
    for operator, position in enumerate(table.events):
        event = events[position]
        backward.append(is_backward(event))
        if event.sequence != UNKNOWN and not backward[operator]:
            recorded[event.sequence].append(operator)
    drawn = {}
    for before, after, kind in trace.arrows:
        if kind == "fwdbwd" and before in table.of_event and after in table.of_event:
            drawn[table.of_event[after]] = table.of_event[before]
    forwards: list[int] = []
    for operator, position in enumerate(table.events):
        event = events[position]
        forward = drawn.get(operator, NO_OPERATOR)
        if forward == NO_OPERATOR and backward[operator] and event.sequence != UNKNOWN:
            forward = _recorded_as(events, table, event, recorded.get(event.sequence, ()))
        parent = table.parents[operator]
        if forward == NO_OPERATOR and parent != NO_OPERATOR:
            forward = forwards[parent]
        forwards.append(forward)
    return forwards


def _recorded_as(
    events: Sequence[TraceEvent], table: OperatorTable, backward: TraceEvent, candidates: Sequence[int]
) -> int:
    """Return the forward operator of a backward one among those with its sequence number."""
    name = _plain(backward.name.rsplit(" ", 1)[-1])
    last = NO_OPERATOR
    for operator in reversed(candidates):
        event = events[table.events[operator]]
        if event.start_us > backward.start_us:
            continue
        if _plain(event.name) == name:
            return operator
        if last == NO_OPERATOR:
            last = operator
    return last


def _plain(name: str) -> str:
    """Return what ``AddmmBackward0`` and ``aten::addmm`` have in common."""
    name = name.rsplit("::", 1)[-1]
    match = BACKWARD_NAME.match(name)
    return (match.group(1) if match else name).replace("_", "").lower()


def _passes(events: Sequence[TraceEvent], step: StepEvents, table: OperatorTable) -> list[OperatorPass]:
    """Return the pass of every operator.

    Backward: what autograd's engine runs, and all that its threads do. Optimizer: inside its annotations. Forward: of
    the rest, from the first operator that a backward belongs to until the last one before the next backward. Without a
    backward all the rest is forward.
    """
    passes: list[OperatorPass] = []
    engine_rows = {
        row
        for row, position in zip(table.rows, table.events, strict=True)
        if row != step.main_row and events[position].name.startswith(AUTOGRAD)
    }
    spans = _forward_spans(events, table)
    at = 0
    for operator, position in enumerate(table.events):
        event, parent = events[position], table.parents[operator]
        if parent != NO_OPERATOR and passes[parent] != "forward":
            passes.append(passes[parent])
        elif table.rows[operator] in engine_rows or is_backward(event):
            passes.append("backward")
        elif any(name.startswith(OPTIMIZER) for name in table.scopes[operator]):
            passes.append("optimizer")
        else:
            while at < len(spans) and spans[at][1] < event.start_us:
                at += 1
            inside = at < len(spans) and spans[at][0] <= event.end_us
            passes.append("forward" if inside or parent != NO_OPERATOR else "other")
    return passes


def _forward_spans(events: Sequence[TraceEvent], table: OperatorTable) -> list[tuple[float, float]]:
    """Return from when to when forward passes ran."""
    differentiated = set(table.forwards) - {NO_OPERATOR}
    if not differentiated:
        return [(-inf, inf)]
    spans: list[tuple[float, float]] = []
    is_open = False
    for operator, position in enumerate(table.events):
        event = events[position]
        if operator in differentiated:
            begin = spans.pop()[0] if is_open else event.start_us
            spans.append((begin, event.start_us))
            is_open = True
        elif table.forwards[operator] != NO_OPERATOR:
            is_open = False
    return spans


def shapes_of(args: Mapping[str, object]) -> tuple[tuple[int, ...], ...]:
    """Return the dimensions of an operator's inputs; () of what is no tensor, and of lists of tensors."""
    dims = args.get("Input Dims")
    if not isinstance(dims, list):
        return ()
    return tuple(
        tuple(shape) if isinstance(shape, list) and all(isinstance(size, int) for size in shape) else ()
        for shape in dims
    )


def dtypes_of(args: Mapping[str, object]) -> tuple[str, ...]:
    """Return the types of an operator's inputs, as PyTorch names them."""
    types = args.get("Input type")
    return tuple(map(str, types)) if isinstance(types, list) else ()
