"""Tie an execution trace to the profiler's trace of another step of the same run.

Writing an execution trace takes longer than many operators, so a step that is timed has none. The same program runs in
every step: its calls have the same order on every thread, and calls of both are numbered alike afterwards, as PyTorch
does with "Record function id" and "rf_id" where both observers see the same step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any

from microbench.traced.slim import step_marks

NUMBER = "Record function id"
THREAD_NODE = "[pytorch|profiler|execution_trace|"
CALLS = ("cpu_op", "user_annotation")


def _attribute(node: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    return next((entry for entry in node.get("attrs", ()) if entry["name"] == name), None)


def _threads(trace: Mapping[str, Any]) -> list[list[dict[str, Any]]]:
    """Return the calls of the last marked step by thread, in their order."""
    mark = step_marks(trace)[-1]
    begin, end = float(mark["ts"]), float(mark["ts"]) + float(mark["dur"])
    threads: defaultdict[object, list[dict[str, Any]]] = defaultdict(list)
    for event in trace["traceEvents"]:
        if event.get("cat") in CALLS and event is not mark and begin <= float(event["ts"]) <= end:
            threads[event["tid"]].append(event)
    # What encloses others begins first, or with them.
    return [sorted(calls, key=lambda call: (call["ts"], -call["dur"])) for calls in threads.values()]


def _tied(nodes: Sequence[Mapping[str, Any]], calls: Sequence[Mapping[str, Any]]) -> list[tuple[int, int]]:
    """Return the positions that have the same names in the same order."""
    names, others = [node["name"] for node in nodes], [call["name"] for call in calls]
    blocks = SequenceMatcher(None, names, others, autojunk=False).get_matching_blocks()
    return [(block.a + i, block.b + i) for block in blocks for i in range(block.size)]


def number_calls(execution: Mapping[str, Any], trace: Mapping[str, Any]) -> None:
    """Number the calls of an execution trace and of a trace's last step alike; 0 is a node without such a call.

    Args:
        execution: as PyTorch's ExecutionTraceObserver writes it; changed.
        trace: of the profiler, from the same run; changed.
    """
    by_thread: defaultdict[object, list[dict[str, Any]]] = defaultdict(list)
    for node in execution["nodes"]:
        number, thread = _attribute(node, "rf_id"), _attribute(node, "tid")
        if number is None or thread is None:
            continue
        if not node["name"].startswith(THREAD_NODE):
            by_thread[thread["value"]].append(node)
        number["value"] = 0
    threads = _threads(trace)
    for nodes in by_thread.values():
        nodes.sort(key=lambda node: int(node["id"]))
        matches = [_tied(nodes, calls) for calls in threads]
        best = max(range(len(threads)), key=lambda thread: len(matches[thread]), default=None)
        if best is None:
            continue
        for node, call in matches[best]:
            entry = _attribute(nodes[node], "rf_id")
            assert entry is not None
            arguments = threads[best][call]["args"]
            entry["value"] = arguments[NUMBER] = arguments["External id"]
        threads.pop(best)
