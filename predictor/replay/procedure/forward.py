"""``fwd_gen``: the graph of a model's forward pass with the depth of every operator."""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator
from math import prod

from predictor.core.base.command_line import Parser
from predictor.core.base.errors import ConfigError
from predictor.replay.files.execution_trace import ExecutionTrace, read_execution_trace
from predictor.replay.precision.dataflow import RecordedCall, recorded_flow
from predictor.replay.precision.forward_graph import DTYPES, PRECISIONS
from predictor.replay.precision.operator_config import OperatorConfig
from predictor.replay.precision.operator_graph import OperatorGraph, OperatorNode, Precision, Tensor
from predictor.replay.procedure.arguments import add_model
from predictor.replay.procedure.blocks import blocks
from predictor.replay.procedure.command import folders_of, new_parser
from predictor.replay.procedure.documents import write_document
from predictor.replay.procedure.folders import RECORD
from predictor.replay.procedure.kernels import add_config, config_of
from predictor.replay.procedure.mapping import forward_graph


def execution_graph(trace: ExecutionTrace, config: OperatorConfig, backend: str = "cpu") -> OperatorGraph:
    """Return the graph of a recorded forward pass.

    Args:
        trace: of one step, or of a forward pass alone.
        config: which operators to track.
        backend: of the device: which operators autocast keeps in fp32 there.
    """
    recorded = recorded_flow(trace, config)
    depths = [0] * len(recorded.calls)
    for producer, consumer, _ in sorted(recorded.flows, key=lambda flow: flow.consumer):
        depths[consumer] = max(depths[consumer], depths[producer] + 1)
    counts: dict[str, int] = defaultdict(int)
    nodes = []
    for call, depth in zip(recorded.calls, depths, strict=True):
        nodes.append(_node(call, f"{call.name}.{counts[call.name]}", depth, config, backend))
        counts[call.name] += 1
    facts = {"source": trace.path.name, "schema": trace.schema}
    return OperatorGraph(nodes, [Tensor(*flow) for flow in recorded.flows], facts)


def _node(call: RecordedCall, label: str, depth: int, config: OperatorConfig, backend: str) -> OperatorNode:
    weights = set(config.of(config.weights, call.name) or ())
    data = [
        prod(shape)
        for at, (shape, dtype) in enumerate(zip(call.shapes, call.dtypes, strict=True))
        if at not in weights and dtype in DTYPES
    ]
    saves = config.of(config.saves, call.name) or ""
    outputs = call.output_numel
    return OperatorNode(
        name=call.name,
        label=label,
        depth=depth,
        shapes=call.shapes,
        weight_numel=sum(prod(call.shapes[at]) for at in weights if at < len(call.shapes)),
        output_numel=outputs,
        saved_numel={"inputs": sum(data), "output": outputs, "both": sum(data) + outputs, "mask": outputs}.get(
            saves, 0
        ),
        choices=config.choices(call.name, backend, PRECISIONS),
        traced=next((DTYPES[dtype] for dtype in call.dtypes if dtype in DTYPES), Precision.FP32),
    )


def parser() -> Parser:
    """Return the command line's parser."""
    result = new_parser("fwd_gen", "Generate the graph of a model's forward pass, with the depth of every operator.")
    add_model(result)
    result.add_argument(
        "--file_name",
        "--file-name",
        metavar="TRACE",
        help="whose execution trace to read (the model's input data, or any)",
    )
    result.add_argument(
        "--device", choices=("cpu", "cuda", "rocm"), default="cpu", help="whose operators autocast keeps in fp32 (cpu)"
    )
    add_config(result)
    return result


def answer(arguments: argparse.Namespace) -> str:
    """Write the graph and return its summary.

    Raises:
        ConfigError: there is no execution trace of the model, or no operator in it is tracked.
    """
    folders, model = folders_of(arguments), arguments.model_name
    path = folders.execution_trace(model, arguments.file_name)
    if path is None:
        there = ", ".join(folders.models()) or "none"
        raise ConfigError(
            f"there is no execution trace of --model_name {model}: neither input_data/{model}.json nor one beside its "
            f"traces; {RECORD} records one. Models with traces: {there}"
        )
    trace = read_execution_trace(path)
    graph = execution_graph(trace, config_of(folders, arguments), arguments.device)
    if not graph.nodes:
        raise ConfigError(
            f"{path} has {len(trace.nodes)} nodes, none of which is tracked; add them to ops_to_track (--config)"
        )
    is_beside_traces = path.name.startswith("execution")
    output = folders.output("fwd_graph", model, path.parent.name if is_beside_traces else model)
    write_document(output, forward_graph(model, path.name, graph))
    notes = (f"note: {note}" for note in trace.notes)
    return "\n".join([f"{model}, {path.name}", *notes, *_summary(graph), f"wrote {output}"])


def _summary(graph: OperatorGraph) -> Iterator[str]:
    depth = max(node.depth for node in graph.nodes)
    repeated = [block for block in blocks(graph) if block.repeats > 1]
    yield f"{len(graph.nodes)} operators, {len(graph.tensors)} tensors between them, depth {depth}"
    for block in repeated:
        nodes = graph.nodes[block.start : block.start + block.length]
        names = ", ".join(dict.fromkeys(node.name for node in nodes))
        yield f"  depth {nodes[0].depth}: {block.repeats} isomorphic blocks of {block.length} operators ({names})"
