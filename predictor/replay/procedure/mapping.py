"""``node_data`` and ``dag_graph_folder``: the operators of a model with their times, and the graph between them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from predictor.replay.graph.local_graph import NO_OPERATOR, LocalGraph, TracedOperator
from predictor.replay.precision.cost_sources import TracedTimes
from predictor.replay.precision.nesting import Inside
from predictor.replay.precision.operator_graph import OperatorGraph, OperatorNode, Precision
from predictor.replay.procedure.blocks import blocks, first_of_kind
from predictor.replay.procedure.documents import CastRow, DagNode, ForwardGraph, NodeData, NodeRow, Provenance


def forward_graph(model_name: str, source: str, graph: OperatorGraph) -> ForwardGraph:
    """Return a graph as a document: depths, inputs, and which operators repeat earlier ones."""
    inputs: dict[int, dict[int, None]] = defaultdict(dict)  # ordered, each producer once
    for tensor in graph.tensors:
        inputs[tensor.consumer][tensor.producer] = None
    same = first_of_kind(blocks(graph))
    nodes = tuple(
        DagNode(
            label=node.label,
            operator=node.name,
            depth=node.depth,
            inputs=tuple(graph.nodes[producer].label for producer in inputs[at]),
            shapes=node.shapes,
            output_numel=node.output_numel,
            weight_numel=node.weight_numel,
            choices=node.choices,
            same_as=graph.nodes[same[at]].label if at in same else None,
        )
        for at, node in enumerate(graph.nodes)
    )
    depth = max((node.depth for node in graph.nodes), default=0)
    return ForwardGraph(model_name=model_name, source=source, depth=depth, nodes=nodes)


def precision_of_step(graph: OperatorGraph, local: LocalGraph) -> Precision:
    """Return the precision that most of the time of operators with a choice was traced in; of none, of all."""
    times: dict[Precision, float] = defaultdict(float)
    nodes = [node for node in graph.nodes if len(node.choices) > 1] or list(graph.nodes)
    for node in nodes:
        if node.forward != NO_OPERATOR:
            times[node.traced] += local.operators[node.forward].us
    return max(times, key=lambda precision: times[precision], default=Precision.FP32)


def traced_device(local: LocalGraph) -> str:
    """Return the device of a trace: its GPU, or the kind of it where the trace names none."""
    return local.device_name or local.backend


def node_data(origin: Provenance, times: TracedTimes, local: LocalGraph) -> NodeData:
    """Return the times of a model's operators in the traced step, casts inside them apart."""
    graph = times.graph
    optimizer_us = sum(operator.us for operator in outermost(local, "optimizer"))
    weights = sum(node.weight_numel for node in graph.nodes)
    inside = Inside.of(local)
    rows = []
    for node in graph.nodes:
        traced = node.forward != NO_OPERATOR
        rows.append(
            NodeRow(
                label=node.label,
                operator=node.name,
                depth=node.depth,
                shapes=node.shapes,
                dtypes=local.operators[node.forward].dtypes if traced else (),
                precision=node.traced,
                forward_us=times.us(node.label, "forward"),
                backward_us=times.us(node.label, "backward"),
                optimizer_us=optimizer_us * node.weight_numel / weights if weights else 0.0,
                weight_numel=node.weight_numel,
                output_numel=node.output_numel,
                saved_numel=node.saved_numel,
                casts=tuple(_casts(local, inside, node)),
            )
        )
    named = sum(row.forward_us + row.backward_us + sum(cast.us for cast in row.casts) for row in rows)
    everything = sum(operator.us for operator in outermost(local))
    other_us = max(0.0, everything - named - optimizer_us)
    return NodeData(origin=origin, nodes=tuple(rows), optimizer_us=optimizer_us, other_us=other_us)


def times_of(data: NodeData) -> TracedTimes:
    """Return the times of operators that were written, to be looked up by their names and shapes."""
    nodes = [
        OperatorNode(
            name=row.operator,
            label=row.label,
            depth=row.depth,
            shapes=row.shapes,
            weight_numel=row.weight_numel,
            output_numel=row.output_numel,
            saved_numel=row.saved_numel,
            choices=(),
            traced=row.precision,
        )
        for row in data.nodes
    ]
    forward = {row.label: row.forward_us for row in data.nodes}
    backward = {row.label: row.backward_us for row in data.nodes}
    return TracedTimes(OperatorGraph(nodes, ()), forward, backward)


def outermost(local: LocalGraph, step_pass: str | None = None) -> Iterator[TracedOperator]:
    """Yield the operators of a pass, or of all, that lie in no other one of it."""
    for operator in local.operators:
        parent = operator.parent
        if step_pass is None:
            if parent == NO_OPERATOR:
                yield operator
        elif operator.step_pass == step_pass and (
            parent == NO_OPERATOR or local.operators[parent].step_pass != step_pass
        ):
            yield operator


def _casts(local: LocalGraph, inside: Inside, node: OperatorNode) -> Iterator[CastRow]:
    """Yield the casts inside an operator, forward and backward."""
    calls = [*([] if node.forward == NO_OPERATOR else [node.forward]), *node.backward]
    for position in sorted(inside.casts(local, calls)):
        operator = local.operators[position]
        yield CastRow(operator=operator.name, step_pass=operator.step_pass, shapes=operator.shapes, us=operator.us)
