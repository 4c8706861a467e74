"""Collectives of a step: kind, group, size, and the gradients in each."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from predictor.replay.files.collective_names import (
    KNOWN,
    NCCL,
    UNLISTED,
    collective_name,
    kernel_collective,
    library_of,
)
from predictor.replay.files.events import UNKNOWN, Category, RankTrace
from predictor.replay.graph.gradient_buckets import BYTES, buckets_of
from predictor.replay.graph.local_graph import NO_PEER, Collective, Edge, EdgeKind, TaskKind, TracedOperator, TracedTask
from predictor.replay.graph.operators import OperatorTable
from predictor.replay.graph.step_events import StepEvents

NAME, GROUP, RANKS, SIZE = "Collective name", "Process Group Name", "Process Group Ranks", "Group size"
# Of a send and of a receive: the rank at the other end, counted in the job (torch/csrc/profiler/util.cpp).
PEERS = {"send": "Dst Rank", "recv": "Src Rank"}
ELEMENTS = ("In msg nelems", "Out msg nelems")
COMMUNICATES = re.compile(r"(nccl|rccl|gloo|mpi|ucc|c10d):|record_param_comms")


def collectives_of(
    trace: RankTrace,
    step: StepEvents,
    table: OperatorTable,
    tasks: Sequence[TracedTask],
    operators: Sequence[TracedOperator],
) -> list[Collective]:
    """Return the collectives of a step, by start.

    Args:
        trace: of a rank.
        step: of it.
        table: the step's operators, as events.
        tasks: of the step, in their order.
        operators: likewise.
    """
    described = {}
    for number, task in enumerate(tasks):
        if task.kind is TaskKind.COLLECTIVE and task.event != UNKNOWN:
            described[number] = _described(trace, step, table, task)
    result = []
    orders = _orders(trace, step, tasks, {number: _text(says.get(GROUP)) for number, says in described.items()})
    for number, says in described.items():
        task = tasks[number]
        is_kernel = trace.events[task.event].category is Category.KERNEL
        group, name = _text(says.get(GROUP)), _name(says, task, is_kernel)
        result.append(
            Collective(
                task=number,
                name=name,
                group=group,
                group_ranks=_ranks(says.get(RANKS)) or tuple(trace.groups.get(group, ())),
                size_bytes=_size_bytes(says),
                order=orders[number],
                peer=_peer(name, says),
                library=_library(task) if is_kernel and not group else "",
            )
        )
    buckets = buckets_of(tasks, operators, result)
    return [each._replace(gradients=buckets.get(tasks[each.task].operator, ())) for each in result]


def _orders(
    trace: RankTrace, step: StepEvents, tasks: Sequence[TracedTask], groups: Mapping[int, str]
) -> dict[int, int]:
    """Return, of each collective, how many of its group were given before: workers may begin them in another order."""

    def given(number: int) -> tuple[float, int]:
        call = step.launched_by.get(tasks[number].event, tasks[number].event)
        return trace.events[call].start_us, number

    count: Counter[str] = Counter()
    orders = {}
    for number in sorted(groups, key=given):
        orders[number] = count[groups[number]]
        count[groups[number]] += 1
    return orders


def _described(trace: RankTrace, step: StepEvents, table: OperatorTable, task: TracedTask) -> dict[str, object]:
    """Return the arguments that describe a collective: its own, then those of the events around its launch."""
    says = dict(trace.events[task.event].args)
    frame = step.launched_by.get(task.event, UNKNOWN)
    while frame != UNKNOWN:
        event = trace.events[frame]
        if COMMUNICATES.match(event.name):
            for key, value in {NAME: event.name, **event.args}.items():
                says.setdefault(key, value)
        frame = table.around.get(frame, UNKNOWN)
    return says


def _name(says: Mapping[str, object], task: TracedTask, is_kernel: bool) -> str:
    """Return which collective it is: as recorded, or else as its kernel is named."""
    recorded = collective_name(_text(says.get(NAME)))
    named = kernel_collective(task.name) if is_kernel else collective_name(task.name)
    return recorded if recorded in KNOWN or (recorded and named not in KNOWN) else named


def _library(task: TracedTask) -> str:
    """Return the library that runs a kernel beside PyTorch's process groups; empty: they run it."""
    library = library_of(task.name)
    return "" if library is None or library.name == NCCL else library.name or UNLISTED


def _text(value: object) -> str:
    return "" if value is None else str(value)


def _peer(name: str, says: Mapping[str, object]) -> int:
    """Return the rank at the other end of a message; NO_PEER where the trace does not say."""
    told = _text(says.get(PEERS.get(name, "")))
    return int(told) if told.isdecimal() else NO_PEER


def _ranks(value: object) -> tuple[int, ...]:
    """Return ranks of a list, or of its text, which the profiler shortens if it is long; () then."""
    text = _text(value)
    if "..." in text:
        return ()
    return tuple(int(rank) for rank in re.findall(r"\d+", text))


def _size_bytes(says: Mapping[str, object]) -> int:
    """Return the bytes of a collective's larger side; 0 where the trace does not say."""
    counts = [value for value in (says.get(key) for key in ELEMENTS) if isinstance(value, int)]
    if counts:
        return max(counts) * BYTES.get(_text(says.get("dtype")).lower(), 0)
    return max((size for size in _tensor_bytes(says.get("Input Dims"), says.get("Input type"))), default=0)


def _tensor_bytes(dims: object, types: object) -> list[int]:
    """Return the bytes of tensors by their dimensions and types."""
    if not isinstance(dims, list) or not isinstance(types, list):
        return []
    sizes = []
    for shape, dtype in zip(dims, types, strict=False):
        numel = 1
        flat = shape
        while isinstance(flat, list) and flat and isinstance(flat[0], list):
            flat = flat[0]
        if not isinstance(flat, list) or not flat or not all(isinstance(size, int) for size in flat):
            continue
        for size in flat:
            numel *= size
        sizes.append(numel * BYTES.get(_text(dtype).lower(), 0))
    return sizes


def with_gradients(
    tasks: Sequence[TracedTask], operators: Sequence[TracedOperator], collectives: Sequence[Collective]
) -> list[TracedTask]:
    """Return the tasks, with buckets waiting for the last task of each operator whose gradient is in them."""
    result = list(tasks)
    for collective in collectives:
        task = tasks[collective.task]
        known = {edge.task for edge in task.after}
        last = {max(operators[gradient].tasks, default=UNKNOWN) for gradient in collective.gradients} - {UNKNOWN}
        edges = [
            Edge(before, 0.0, EdgeKind.GRADIENT)
            for before in sorted(last - known)
            if tasks[before].start_us + tasks[before].duration_us <= task.start_us
        ]
        result[collective.task] = task._replace(after=(*task.after, *edges))
    return result
