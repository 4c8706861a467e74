"""``analyse``: a step of a trace taken apart into four files, or predicted."""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from predictor.core.base.command_line import Parser
from predictor.core.base.errors import ConfigError
from predictor.core.base.files import write_whole
from predictor.core.base.quantities import duration
from predictor.core.timeline.graph import GraphReplay
from predictor.replay.files.record_model import RecordModel
from predictor.replay.graph.local_graph import NO_OPERATOR, EdgeKind, LocalGraph, TracedOperator
from predictor.replay.graph.local_replay import replay_local
from predictor.replay.precision.forward_graph import traced_times
from predictor.replay.precision.operator_graph import OperatorGraph, Precision
from predictor.replay.procedure.arguments import TraceParser, add_trace, precision_of, trace_name
from predictor.replay.procedure.command import folders_of, new_parser
from predictor.replay.procedure.documents import (
    CriticalData,
    CriticalPath,
    NodeData,
    PathOperator,
    PathTask,
    Provenance,
    write_document,
)
from predictor.replay.procedure.folders import Folders, Kind
from predictor.replay.procedure.kernels import add_config, config_of
from predictor.replay.procedure.mapping import forward_graph, node_data, precision_of_step, traced_device
from predictor.replay.procedure.opened import OpenedStep, open_step
from predictor.replay.procedure.predicted import predict_step
from predictor.replay.procedure.rank_costs import graph_of


def order_log(graph: OperatorGraph, path: CriticalPath) -> str:
    """Return the log: one line an operator, producers first, then one line a task of the critical path."""
    return "\n".join([*_order(graph), "", *_path(path)]) + "\n"


def _order(graph: OperatorGraph) -> Iterator[str]:
    yield f"topological order of {len(graph.nodes)} operators: position, depth, operator, label"
    for at, node in enumerate(graph.nodes):
        yield f"{at:6} {node.depth:5}  {node.name:36} {node.label}"


def _path(path: CriticalPath) -> Iterator[str]:
    yield (
        f"longest path of {path.origin.step}: {path.path_us:.1f} µs, {len(path.tasks)} tasks: "
        "start µs, duration µs, edge before it, where, task"
    )
    for task in path.tasks:
        yield f"{task.start_us:13.1f} {task.duration_us:11.1f}  {task.waits_for or 'start':9} {task.row:16} {task.name}"


LAG = "lag"
Key = tuple[str, str, tuple[tuple[int, ...], ...], tuple[str, ...]]


def critical_path(origin: Provenance, local: LocalGraph, replayed: GraphReplay) -> CriticalPath:
    """Return the critical path, task after task, with the edge that each waited for."""
    tasks = []
    before: int | None = None
    for position in replayed.critical_path:
        task, span = local.tasks[position], replayed.spans[position]
        kinds = [edge.kind for edge in task.after if edge.task == before]
        waits_for: str | None = None if before is None else str(kinds[0] if kinds else EdgeKind.ROW)
        tasks.append(
            PathTask(
                task=position,
                name=task.name,
                kind=task.kind,
                row=local.rows[task.row],
                start_us=span.start_us,
                duration_us=span.end_us - span.start_us,
                waits_for=waits_for,
            )
        )
        before = position
    return CriticalPath(origin=origin, path_us=replayed.makespan_us, tasks=tuple(tasks))


def critical_data(origin: Provenance, local: LocalGraph, replayed: GraphReplay) -> CriticalData:
    """Return what the critical path computes on: its operators by their shapes, the largest share first."""
    kinds: dict[str, float] = defaultdict(float)
    times: dict[Key, float] = defaultdict(float)
    calls: dict[Key, set[int]] = defaultdict(set)
    examples: dict[Key, TracedOperator] = {}
    reached = 0.0
    for position in replayed.critical_path:
        task, span = local.tasks[position], replayed.spans[position]
        lasted = span.end_us - span.start_us
        kinds[task.kind] += lasted
        kinds[LAG] += max(0.0, span.start_us - reached)
        reached = span.end_us
        if task.operator != NO_OPERATOR:
            operator = local.operators[task.operator]
            key = operator.name, operator.step_pass, operator.shapes, operator.dtypes
            times[key] += lasted
            calls[key].add(task.operator)
            examples.setdefault(key, operator)
    path_us = replayed.makespan_us
    operators = [
        PathOperator(
            operator=examples[key].name,
            step_pass=examples[key].step_pass,
            scope=examples[key].scope,
            shapes=examples[key].shapes,
            dtypes=examples[key].dtypes,
            calls=len(calls[key]),
            on_path_us=us,
            share=min(1.0, us / path_us) if path_us else 0.0,
        )
        for key, us in sorted(times.items(), key=lambda item: -item[1])
    ]
    return CriticalData(origin=origin, path_us=path_us, kinds_us=dict(kinds), operators=tuple(operators))


MOST_LISTED = 8


def parser() -> Parser:
    """Return the command line's parser."""
    result = new_parser(
        "analyse",
        "Take a step of a trace apart (--generate_mapping), or predict its latency and memory in --bit bits.",
        TraceParser,
    )
    add_trace(result)
    add_config(result)
    result.add_argument(
        "--generate_mapping",
        "--generate-mapping",
        action="store_true",
        help="write cng, cng_data, node_data and dag_graph_folder below tmp_data, and predict nothing",
    )
    result.add_argument("--list_traces", "--list-traces", action="store_true", help="print the model's traces")
    return result


def answer(arguments: argparse.Namespace) -> str:
    """Return what was written, or the prediction.

    Raises:
        ConfigError: there is no such trace, step, rank or precision, or the step cannot be tracked.
    """
    folders = folders_of(arguments)
    if arguments.list_traces:
        return "\n".join(folders.trace_names(arguments.model_name))
    precision_of(arguments.bit)  # before the trace is read, which takes longer
    name = trace_name(folders, arguments.model_name, arguments.file_name, arguments.bit)
    if not arguments.generate_mapping:
        return predict_step(folders, arguments, name, config_of(folders, arguments))
    opened = open_step(rank_path(folders, arguments, name), arguments.target_trace_idx)
    return "\n".join(_written(folders, arguments, name, opened))


def rank_path(folders: Folders, arguments: argparse.Namespace, name: str) -> Path:
    """Return the trace of the rank that is meant.

    Raises:
        ConfigError: there are fewer ranks.
    """
    paths = folders.traces(arguments.model_name, name)
    rank = arguments.rank or 0
    if not 0 <= rank < len(paths):
        raise ConfigError(f"--rank is {rank}; {name} of {arguments.model_name} has ranks 0 to {len(paths) - 1}")
    return paths[rank]


def provenance_of(arguments: argparse.Namespace, name: str, opened: OpenedStep, precision: Precision) -> Provenance:
    """Return what the files of a step were made from."""
    local = opened.local
    return Provenance(
        model_name=arguments.model_name,
        file_name=name,
        device_name=arguments.device_name,
        traced_device=traced_device(local),
        precision=precision,
        step=local.label,
        target_trace_idx=opened.index,
        rank=local.rank,
        step_us=local.step_us,
    )


def _written(folders: Folders, arguments: argparse.Namespace, name: str, opened: OpenedStep) -> Iterator[str]:
    """Write the four files and the log, and yield a summary."""
    local = opened.local
    graph = graph_of(folders, arguments.model_name, name, local, config_of(folders, arguments))
    origin = provenance_of(arguments, name, opened, precision_of_step(graph, local))
    replayed = replay_local(local)
    path, data = critical_path(origin, local, replayed), critical_data(origin, local, replayed)
    nodes = node_data(origin, traced_times(local, graph), local)
    documents: dict[Kind, RecordModel] = {
        "cng": path,
        "cng_data": data,
        "node_data": nodes,
        "dag_graph_folder": forward_graph(arguments.model_name, name, graph),
    }
    yield from _heading(arguments, name, opened, origin)
    yield f"replayed {duration(replayed.makespan_us)}, measured {duration(local.step_us)}"
    yield ""
    yield from _summary(graph, data, nodes)
    yield ""
    for kind, document in documents.items():
        output = folders.output(kind, arguments.model_name, name)
        write_document(output, document)
        yield f"wrote {output}"
    log = folders.log(arguments.model_name, name)
    write_whole(log, order_log(graph, path))
    yield f"wrote {log}"


def _heading(arguments: argparse.Namespace, name: str, opened: OpenedStep, origin: Provenance) -> Iterator[str]:
    device = f"{origin.device_name} (traced on {origin.traced_device})"
    yield f"{arguments.model_name}, {name}, rank {origin.rank}, {origin.step}: {origin.precision} on {device}"
    yield from (f"note: {note}" for note in opened.notes)
    asked = precision_of(arguments.bit, [origin.precision, name])
    if asked is not origin.precision and any(operator.dtypes for operator in opened.local.operators):
        yield f"note: --bit is {arguments.bit}, and the step computes in {origin.precision}: it is filed as that"


def _summary(graph: OperatorGraph, data: CriticalData, nodes: NodeData) -> Iterator[str]:
    depth = max((node.depth for node in graph.nodes), default=0)
    forward, backward = (sum(getattr(row, key) for row in nodes.nodes) for key in ("forward_us", "backward_us"))
    parts = zip(
        ("forward", "backward", "optimizer", "other operators"),
        (forward, backward, nodes.optimizer_us, nodes.other_us),
        strict=True,
    )
    yield f"operators     {len(graph.nodes)}, {len(graph.tensors)} tensors between them, depth {depth}"
    yield f"their time    {', '.join(f'{part} {duration(us)}' for part, us in parts)}"
    kinds = ", ".join(f"{kind} {duration(us)}" for kind, us in sorted(data.kinds_us.items(), key=lambda x: -x[1]) if us)
    yield f"critical path {duration(data.path_us)}: {kinds}"
    for operator in data.operators[:MOST_LISTED]:
        shapes = " ".join("×".join(map(str, shape)) for shape in operator.shapes if shape)
        yield (
            f"  {operator.share:6.1%} {duration(operator.on_path_us):>9}  {operator.step_pass:9} "
            f"{operator.operator} ×{operator.calls}  {shapes}".rstrip()
        )
