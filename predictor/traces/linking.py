"""Tie the operators of a profiler's trace to the nodes of an execution trace of the same step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from predictor.traces.events import UNKNOWN, Category, RankTrace, TraceEvent
from predictor.traces.execution_trace import ExecutionNode, ExecutionTrace

RECORD_FUNCTION = "Record function id"
HOST = frozenset({Category.OPERATOR, Category.ANNOTATION})
THREAD_NODE = "[pytorch|profiler|"  # nodes of the process and of threads, which are no calls


class Link(NamedTuple):
    """What was tied.

    Attributes:
        nodes: id of the node by the position of its event in the trace.
        by: ``record function`` or ``sequence``: what both traces number alike; empty: nothing.
    """

    nodes: Mapping[int, int]
    by: str


def link(trace: RankTrace, execution: ExecutionTrace) -> Link:
    """Tie operators to the nodes of an execution trace that was recorded beside the profiler.

    PyTorch numbers calls for both observers alike (« Record function id », rf_id) since 2.1. In traces without it,
    autograd's sequence numbers tie the operators that it records: with a name, a number is unique in a process. What
    is inside, around or beside tied operators is tied in its order where its names agree. The « External id » counts
    the profiler's events, not calls, and ties nothing.

    A node is tied once, to an event of its name.
    """
    host = [position for position, event in enumerate(trace.events) if event.category in HOST]
    calls = [node for node in execution.nodes if not node.name.startswith(THREAD_NODE)]
    nodes = _by_record_function(trace, host, calls)
    if nodes:
        return Link(nodes, "record function")
    tied = _by_sequence(trace, host, calls)
    if not tied:
        return Link({}, "")
    _inside(trace, host, execution, tied)
    return Link(dict(sorted(tied.items())), "sequence")


def _by_record_function(trace: RankTrace, host: Iterable[int], calls: Iterable[ExecutionNode]) -> dict[int, int]:
    numbered = {node.record_function: node for node in calls if node.record_function}
    tied: dict[int, int] = {}
    used: set[int] = set()
    for position in host:
        event = trace.events[position]
        number = event.args.get(RECORD_FUNCTION)
        node = numbered.get(number) if isinstance(number, int) and number else None
        if node is not None and node.name == event.name and node.id not in used:
            tied[position] = node.id
            used.add(node.id)
    return tied


def _by_sequence(trace: RankTrace, host: Iterable[int], calls: Iterable[ExecutionNode]) -> dict[int, int]:
    """Tie what has the same name and sequence number, as often in one trace as in the other, in order."""
    events: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
    for position in host:
        event = trace.events[position]
        if event.sequence != UNKNOWN:
            events[event.name, event.sequence].append(position)
    nodes: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
    for node in calls:
        if node.sequence >= 0:
            nodes[node.name, node.sequence].append(node.id)
    tied: dict[int, int] = {}
    for key, identities in nodes.items():
        if len(events[key]) == len(identities):
            tied.update(zip(events[key], identities, strict=True))
    return tied


def _inside(trace: RankTrace, host: Sequence[int], execution: ExecutionTrace, tied: dict[int, int]) -> None:
    """Tie what is inside of tied operators, and beside them on their thread, where the order of names agrees."""
    events = trace.events
    around = _enclosing(events, host)
    inner: defaultdict[tuple[int, int], list[int]] = defaultdict(list)  # by what is around, and row
    for position in host:
        inner[around[position], events[position].row].append(position)
    children = execution.children()
    event_of = {identity: position for position, identity in tied.items()}
    _around(events, around, execution, tied, event_of)
    waiting = list(tied)
    for thread in (node for node in execution.nodes if node.name.startswith(THREAD_NODE)):
        calls = [node for node in children.get(thread.id, ()) if not node.name.startswith(THREAD_NODE)]
        positions = [event_of[node.id] for node in calls if node.id in event_of]
        # The thread itself is no event, and what encloses its calls may be an annotation that only the profiler has.
        for place in dict.fromkeys((around[position], events[position].row) for position in positions):
            waiting += _align(events, inner[place], calls, tied, event_of)
    while waiting:
        position = waiting.pop()
        inside = inner[position, events[position].row]
        waiting += _align(events, inside, children.get(tied[position], []), tied, event_of)


def _around(
    events: Sequence[TraceEvent],
    around: Mapping[int, int],
    execution: ExecutionTrace,
    tied: dict[int, int],
    event_of: dict[int, int],
) -> None:
    """Tie what is around tied operators and has one name: an engine's call has its number in one trace alone."""
    nodes = {node.id: node for node in execution.nodes}
    for position, identity in list(tied.items()):
        outer, parent = around[position], nodes.get(nodes[identity].parent)
        while parent and outer != UNKNOWN and events[outer].name == parent.name:
            if outer in tied or parent.id in event_of:
                break
            tied[outer], event_of[parent.id] = parent.id, outer
            outer, parent = around[outer], nodes.get(parent.parent)


def _enclosing(events: Sequence[TraceEvent], host: Iterable[int]) -> dict[int, int]:
    """Return the position of the innermost operator or annotation around each, on its thread; UNKNOWN: none."""
    around: dict[int, int] = {}
    open_on: defaultdict[int, list[int]] = defaultdict(list)
    for position in host:
        event = events[position]
        stack = open_on[event.row]
        while stack and (events[stack[-1]].end_us <= event.start_us or events[stack[-1]].end_us < event.end_us):
            stack.pop()
        around[position] = stack[-1] if stack else UNKNOWN
        stack.append(position)
    return around


def _align(
    events: Sequence[TraceEvent],
    positions: Sequence[int],
    calls: Sequence[ExecutionNode],
    tied: dict[int, int],
    event_of: dict[int, int],
) -> list[int]:
    """Tie neighbours in two lists: from each tied pair on forwards and backwards, while names agree.

    Without a tied pair the lists are tied if they agree from their beginning to their end.

    Returns:
        The positions tied.
    """
    added: list[int] = []
    place = {position: number for number, position in enumerate(positions)}
    anchors = [
        (place[event_of[node.id]], number) for number, node in enumerate(calls) if event_of.get(node.id) in place
    ]
    if not anchors and [events[position].name for position in positions] == [node.name for node in calls]:
        anchors = [(-1, -1)]
    for at, number in anchors:
        for step in (1, -1):
            event, call = at + step, number + step
            while 0 <= event < len(positions) and 0 <= call < len(calls):
                position, node = positions[event], calls[call]
                if events[position].name != node.name or position in tied or node.id in event_of:
                    break
                tied[position] = node.id
                event_of[node.id] = position
                added.append(position)
                event, call = event + step, call + step
    return added
