"""Write a step as Chakra traces, one for each rank, for network simulators such as ASTRA-sim.

A simulator takes the times of computation from the trace and finds those of communication itself. So every task is a
node of its rank: computation with its duration, a collective with its kind, size and group, a message as a send on one
rank and a receive on the other. What a task waits for on its own rank, the task before it on its stream included,
becomes ``data_deps``, the only dependencies that all simulators follow. What it waits for on another rank becomes a
message of one byte, unless it communicates itself: partners of a communication wait for each other anyway.

Source: ASTRA-sim, astra-sim/workload/Workload.cc (attributes, file names, communicator groups) and
astra-sim/system/astraccl (a collective's size is what one rank puts in); Chakra, src/feeder/et_feeder_node.cpp.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from predictor.core.base.files import write_whole
from predictor.core.timeline.graph import GraphError, GraphTask
from predictor.replay.files.chakra_file import (
    Attribute,
    ChakraFile,
    ChakraNode,
    CollectiveType,
    NodeType,
    write_chakra_file,
)

SEND, RECEIVE = "send", "receive"
MESSAGES = {SEND: NodeType.COMM_SEND, RECEIVE: NodeType.COMM_RECV}
SIGNAL_BYTES = 1
FIRST_SIGNAL_TAG = 1 << 24  # tags below are those of messages
ALL_RANKS = ""  # the group of all ranks, which simulators know without a definition
GROUPS_FILE = "groups"


class Communication(NamedTuple):
    """What a task sends or receives.

    Attributes:
        kind: ``send``, ``receive``, or a collective: ``all_reduce``, ``all_gather``, ``reduce_scatter``,
            ``all_to_all``, ``broadcast`` …
        size_bytes: of the message; of a collective what one rank puts in: its shard of an all-gather, all that a
            reduce-scatter reduces.
        group: number of the collective's group; ALL_RANKS: all.
        peer: rank at the other end of a message.
        tag: of a message, shared by its two ends.
    """

    kind: str
    size_bytes: int
    group: str = ALL_RANKS
    peer: int = 0
    tag: int = 0


class Computation(NamedTuple):
    """Work of a task that computes, for simulators that time it by a roofline."""

    flops: int
    size_bytes: int


TaskWork = Communication | Computation


def write_chakra(
    folder: Path, parts: Iterable[Mapping[int, ChakraFile]], groups: Mapping[str, Sequence[int]]
) -> list[Path]:
    """Write a step, one file a rank (``step.0.et`` …), and ``step.groups.json`` where there are groups.

    Args:
        folder: is made where it is missing.
        parts: files by rank, of some ranks at a time.
        groups: ranks of the groups that collectives name; ASTRA-sim wants whole numbers above 0 as names.

    Returns:
        The files of the ranks, in their order.

    Raises:
        OSError: a file cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = {}
    for files in parts:
        for rank, file in files.items():
            paths[rank] = folder / f"step.{rank}.et"
            write_chakra_file(paths[rank], file)
    if groups:
        content = {group: list(ranks) for group, ranks in groups.items()}
        write_whole(folder / f"step.{GROUPS_FILE}.json", json.dumps(content) + "\n")
    return [paths[rank] for rank in sorted(paths)]


def chakra_files(
    tasks: Sequence[GraphTask], work: Mapping[int, TaskWork], groups: Mapping[str, Sequence[int]]
) -> dict[int, ChakraFile]:
    """Return the content of every rank's file, by rank.

    Durations are whole microseconds; what is rounded off a task is added to the next one on its stream, so that a
    stream as a whole keeps its time.

    Args:
        tasks: as ``replay_graph`` takes them, of ranks that others share no dependency with.
        work: by the position of a task; one without computes for its duration.
        groups: ranks of the groups that collectives name.

    Raises:
        GraphError: a task waits for one that does not exist, or a collective's kind or group is unknown.
    """
    waits = _dependencies(tasks)
    signals = _signals(tasks, work, waits)
    nodes: defaultdict[int, list[ChakraNode]] = defaultdict(list)
    left_us: defaultdict[tuple[int, str], float] = defaultdict(float)
    next_id = len(tasks) + 2 * len(signals)
    for position, task in enumerate(tasks):
        stream = (task.rank, task.stream)
        exact = task.duration_us + left_us[stream]
        duration = max(0, round(exact))
        left_us[stream] = exact - duration
        deps: list[int] = []
        behind: defaultdict[int, list[int]] = defaultdict(list)  # by whole microseconds of lag
        for before, lag_us in waits[position].items():
            if tasks[before].rank == task.rank:
                behind[round(lag_us)].append(before)
            elif (before, position) in signals:
                behind[round(lag_us)].append(signals[before, position].receive)
        for lag, befores in behind.items():
            if lag:
                nodes[task.rank].append(_lag_node(next_id, task, lag, befores))
                befores, next_id = [next_id], next_id + 1
            deps += befores
        nodes[task.rank].append(_node(position, task, duration, deps, work.get(position), groups))
    for signal in signals.values():
        nodes[tasks[signal.before].rank].append(_end_of(signal, tasks, SEND))
        nodes[tasks[signal.after].rank].append(_end_of(signal, tasks, RECEIVE))
    return {rank: ChakraFile(nodes[rank]) for rank in sorted(nodes)}


def _dependencies(tasks: Sequence[GraphTask]) -> list[dict[int, float]]:
    """Return what every task waits for, the task before it on its stream first, and the lags.

    Raises:
        GraphError: a task waits for one that does not exist.
    """
    last: dict[tuple[int, str], int] = {}
    waits = []
    for position, task in enumerate(tasks):
        unknown = [number for number in task.after if not 0 <= number < len(tasks)]
        if unknown:
            raise GraphError(f"task {position} ({task.name}) waits for task {unknown[0]} of {len(tasks)}")
        wait: dict[int, float] = {}
        if task.is_exclusive:
            if (task.rank, task.stream) in last:
                wait[last[task.rank, task.stream]] = 0.0
            last[task.rank, task.stream] = position
        for before, lag_us in zip(task.after, task.lags_us or (0.0,) * len(task.after), strict=True):
            wait[before] = max(lag_us, wait.get(before, 0.0))
        waits.append(wait)
    return waits


class _Signal(NamedTuple):
    """A message of one byte, by which a task on one rank waits for a task on another one."""

    before: int
    after: int
    send: int
    receive: int


def _signals(
    tasks: Sequence[GraphTask], work: Mapping[int, TaskWork], waits: Iterable[Iterable[int]]
) -> dict[tuple[int, int], _Signal]:
    """Return the waits across ranks of tasks that do not communicate; their nodes come behind those of tasks."""
    pairs = [
        (before, after)
        for after, befores in enumerate(waits)
        for before in befores
        if tasks[before].rank != tasks[after].rank and not isinstance(work.get(after), Communication)
    ]
    ends = range(len(tasks), len(tasks) + 2 * len(pairs), 2)
    return {pair: _Signal(*pair, end, end + 1) for pair, end in zip(pairs, ends, strict=True)}


def _lag_node(number: int, task: GraphTask, lag: int, befores: Sequence[int]) -> ChakraNode:
    """Return what a task waits for after its predecessors; work of the host, which keeps no GPU busy."""
    attributes = {"is_cpu_op": Attribute("bool", True)}
    return ChakraNode(number, f"lag of {task.name}", NodeType.COMP, (), tuple(befores), 0, lag, attributes=attributes)


def _end_of(signal: _Signal, tasks: Sequence[GraphTask], kind: str) -> ChakraNode:
    """Return one end of a signal."""
    before, after = tasks[signal.before], tasks[signal.after]
    rank, peer = (before.rank, after.rank) if kind == SEND else (after.rank, before.rank)
    number, deps = (signal.send, (signal.before,)) if kind == SEND else (signal.receive, ())
    message = Communication(kind, SIGNAL_BYTES, peer=peer, tag=FIRST_SIGNAL_TAG + signal.send)
    name = f"{before.name} before {after.name}"
    return ChakraNode(number, name, MESSAGES[kind], (), deps, attributes=_communication(message, rank))


def _node(
    position: int,
    task: GraphTask,
    duration: int,
    deps: Sequence[int],
    work: TaskWork | None,
    groups: Mapping[str, Sequence[int]],
) -> ChakraNode:
    if isinstance(work, Communication):
        kind = MESSAGES.get(work.kind, NodeType.COMM_COLL)
        if kind is NodeType.COMM_COLL and work.kind.upper() not in CollectiveType.__members__:
            known = ", ".join([*MESSAGES, *(name.lower() for name in CollectiveType.__members__)])
            raise GraphError(f"task {position} ({task.name}) runs {work.kind}; expected one of {known}")
        if work.group != ALL_RANKS and task.rank not in groups.get(work.group, ()):
            raise GraphError(f"task {position} ({task.name}) is of rank {task.rank}, which group {work.group} has not")
        attributes = _communication(work, task.rank)
    else:
        kind = NodeType.COMP
        flops, size = work or (0, 0)
        attributes = {
            "is_cpu_op": Attribute("bool", False),
            "num_ops": Attribute("int64", flops),
            "tensor_size": Attribute("uint64", size),
        }
    return ChakraNode(position, task.name, kind, (), tuple(deps), 0, duration, attributes=attributes)


def _communication(work: Communication, rank: int) -> dict[str, Attribute]:
    """Return the attributes of a node that communicates."""
    attributes = {"is_cpu_op": Attribute("bool", False), "comm_size": Attribute("int64", work.size_bytes)}
    if work.kind in MESSAGES:
        source, target = (rank, work.peer) if work.kind == SEND else (work.peer, rank)
        return attributes | {
            "comm_src": Attribute("int32", source),
            "comm_dst": Attribute("int32", target),
            "comm_tag": Attribute("int32", work.tag),
        }
    attributes["comm_type"] = Attribute("int64", int(CollectiveType[work.kind.upper()]))
    if work.group != ALL_RANKS:
        attributes["pg_name"] = Attribute("string", work.group)
    return attributes
