"""``analyse``: a step of a trace taken apart into four files, or predicted."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from predictor.core.base.command_line import Parser
from predictor.core.base.errors import ConfigError
from predictor.core.base.files import write_whole
from predictor.core.base.quantities import duration
from predictor.replay.files.record_model import RecordModel
from predictor.replay.graph.local_replay import replay_local
from predictor.replay.precision.forward_graph import traced_times
from predictor.replay.precision.operator_graph import OperatorGraph, Precision
from predictor.replay.procedure.arguments import TraceParser, add_trace, precision_of, trace_name
from predictor.replay.procedure.command import folders_of, new_parser
from predictor.replay.procedure.critical import critical_data, critical_path
from predictor.replay.procedure.documents import CriticalData, NodeData, Provenance, write_document
from predictor.replay.procedure.folders import Folders, Kind
from predictor.replay.procedure.kernels import add_config, config_of
from predictor.replay.procedure.mapping import forward_graph, node_data, precision_of_step, traced_device
from predictor.replay.procedure.opened import OpenedStep, open_step
from predictor.replay.procedure.order_log import order_log
from predictor.replay.procedure.predicted import predict_step
from predictor.replay.procedure.rank_costs import graph_of

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
