"""Traced operators: how they nest, which pass they belong to, and which backward belongs to which forward."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from predictor.replay.files.events import UNKNOWN, Category, RankTrace, TraceEvent
from predictor.replay.graph.host_threads import Thread
from predictor.replay.graph.local_graph import NO_OPERATOR, OperatorPass
from predictor.replay.graph.step_events import AUTOGRAD, STEP, StepEvents

OPTIMIZER = ("Optimizer.step#", "Optimizer.zero_grad#")
FORWARD_THREAD = "Fwd thread id"
BACKWARD_NAME = re.compile(r"(\w+?)Backward\d*$")
NAMED_LIKE_AN_OPERATOR = re.compile(r"[A-Za-z_]\w*(::[A-Za-z_]\w*)+$|(nccl|rccl|gloo|mpi|ucc):\w+$")
# Before 1.10 the profiler gave annotations the category of operators.
ANNOTATES = (STEP, "Optimizer.", "enumerate(DataLoader)", "DistributedDataParallel.")
REDUCER = re.compile(r"torch(\.distributed\.ddp\.|::distributed::)reducer::")
GRADIENT = "torch::autograd::AccumulateGrad"


def is_operator(event: TraceEvent) -> bool:
    """Return whether an event is an operator: the dispatcher's, autograd's, a collective's, or a range named like one.

    Kernels of one's own have no operator of the dispatcher; ``torch.profiler.record_function("qsync::linear_fp32")``
    around them makes them one.
    """
    if event.category is Category.OPERATOR:
        return not event.name.startswith(ANNOTATES)
    return event.category is Category.ANNOTATION and NAMED_LIKE_AN_OPERATOR.match(event.name) is not None


@dataclass(slots=True)
class OperatorTable:
    """The operators of a step, by start; every list is parallel to ``events``.

    A launch in no operator, as of a fused optimizer's or a Triton kernel, stands for one: a call of what the innermost
    annotation or module around it names.

    Attributes:
        events: their positions in the trace; of such a launch that of its runtime call.
        rows: threads they ran on.
        parents: the operator around each; NO_OPERATOR: none.
        scopes: annotations and modules around each, outermost first.
        passes: where in the step.
        forwards: of backward operators, the forward one; NO_OPERATOR: none or unknown.
        of_event: the operator that an event is, or is in.
        has_reducer: DDP's reducer is among them.
        around: of every event of a thread, operator or not, the one around it; UNKNOWN: none.
    """

    events: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    scopes: list[tuple[str, ...]] = field(default_factory=list)
    passes: list[OperatorPass] = field(default_factory=list)
    forwards: list[int] = field(default_factory=list)
    of_event: dict[int, int] = field(default_factory=dict)
    around: dict[int, int] = field(default_factory=dict)
    has_reducer: bool = False

    def add(self, event: int, row: int, parent: int, scope: tuple[str, ...]) -> None:
        """Add the next operator; its pass and its forward one are known later."""
        self.of_event[event] = len(self.events)
        self.events.append(event)
        self.rows.append(row)
        self.parents.append(parent)
        self.scopes.append(scope)

    def name(self, operator: int, event: TraceEvent) -> str:
        """Return what an operator is called, of which the event is given."""
        return self.scopes[operator][-1] if event.category is Category.RUNTIME else event.name


def operator_table(trace: RankTrace, step: StepEvents, threads: Sequence[Thread]) -> OperatorTable:
    """Return the operators of a step."""
    table = OperatorTable()
    events = trace.events
    around = table.around
    row_of: dict[int, int] = {}
    launches = {call for call in step.launched_by.values() if events[call].category is Category.RUNTIME}
    for thread in threads:
        around |= thread.around
        row_of |= dict.fromkeys(thread.frames, thread.row)
    scopes: dict[int, tuple[str, ...]] = {UNKNOWN: ()}  # of an event, itself included
    for frame in sorted(row_of):
        event, outer = events[frame], around[frame]
        parent = table.of_event.get(outer, NO_OPERATOR)
        if is_operator(event):
            table.add(frame, row_of[frame], parent, scopes[outer] + _hierarchy(event))
            scopes[frame] = scopes[outer]
        elif parent == NO_OPERATOR and frame in launches and scopes[outer]:
            table.add(frame, row_of[frame], NO_OPERATOR, scopes[outer])
            scopes[frame] = scopes[outer]
        else:
            if parent != NO_OPERATOR:
                table.of_event[frame] = parent
            is_scope = event.category is not Category.RUNTIME
            scopes[frame] = (*scopes[outer], event.name) if is_scope else scopes[outer]
    table.has_reducer = any(REDUCER.match(events[position].name) for position in table.events)
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
    if isinstance(thread, int):  # 0 in forward operators
        return thread > 0
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
    name = _stem(backward.name.rsplit(" ", 1)[-1])
    last = NO_OPERATOR
    for operator in reversed(candidates):
        event = events[table.events[operator]]
        if event.start_us > backward.start_us:
            continue
        if _stem(event.name) == name:
            return operator
        if last == NO_OPERATOR:
            last = operator
    return last


def _stem(name: str) -> str:
    """Return what ``AddmmBackward0`` and ``aten::addmm`` have in common."""
    name = name.rsplit("::", 1)[-1]
    match = BACKWARD_NAME.match(name)
    return (match.group(1) if match else name).replace("_", "").lower()


def _passes(events: Sequence[TraceEvent], step: StepEvents, table: OperatorTable) -> list[OperatorPass]:
    """Return the pass of every operator.

    Backward: what autograd's engine runs, all that its threads do, what lies between its operators on the thread that
    called it, such as hooks, and the reducer of DDP. Optimizer: inside its annotations. Forward: of the rest, from the
    first operator that a backward belongs to until the last one before the next backward. Without a backward all the
    rest is forward.
    """
    passes: list[OperatorPass] = []
    engine_rows = {
        row
        for row, position in zip(table.rows, table.events, strict=True)
        if row != step.main_row and events[position].name.startswith(AUTOGRAD)
    }
    spans = _forward_spans(events, table)
    backward = _backward_spans(events, table, spans)
    for operator, position in enumerate(table.events):
        event, parent = events[position], table.parents[operator]
        if parent != NO_OPERATOR and passes[parent] != "forward":
            passes.append(passes[parent])
        elif table.rows[operator] in engine_rows or is_backward(event) or REDUCER.match(event.name):
            passes.append("backward")
        elif any(name.startswith(OPTIMIZER) for name in table.scopes[operator]):
            passes.append("optimizer")
        elif _is_within(backward.get(table.rows[operator], ()), event):
            passes.append("backward")
        else:
            passes.append("forward" if parent != NO_OPERATOR or _is_within(spans, event) else "other")
    return passes


def _is_within(spans: Sequence[tuple[float, float]], event: TraceEvent) -> bool:
    """Return whether an event begins in one of some spans, or holds the begin of one."""
    place = bisect_right(spans, (event.end_us, inf)) - 1
    return place >= 0 and spans[place][1] >= event.start_us


def _backward_spans(
    events: Sequence[TraceEvent], table: OperatorTable, forward: Sequence[tuple[float, float]]
) -> dict[int, list[tuple[float, float]]]:
    """Return, by thread, from when to when backward passes ran; a forward pass parts them."""
    starts = [start for start, _ in forward]
    spans: dict[int, list[tuple[float, float]]] = {}
    for row, position, parent in zip(table.rows, table.events, table.parents, strict=True):
        event = events[position]
        if parent != NO_OPERATOR or not (is_backward(event) or REDUCER.match(event.name)):
            continue
        known = spans.setdefault(row, [])
        if known and bisect_right(starts, known[-1][1]) == bisect_right(starts, event.start_us):
            known[-1] = (known[-1][0], event.end_us)
        else:
            known.append((event.start_us, event.end_us))
    return spans


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
