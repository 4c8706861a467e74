"""``node_data`` and ``dag_graph_folder``: the operators of a model with their times, and the graph between them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from predictor.precision.operator_graph import OperatorGraph, OperatorNode, Precision
from predictor.replay.procedure.blocks import blocks, first_of_kind
from predictor.replay.procedure.documents import CastRow, DagNode, ForwardGraph, NodeData, NodeRow, Origin
from predictor.traces.local_graph import NO_OPERATOR, LocalGraph, TracedOperator

CASTS = frozenset({"aten::_to_copy", "aten::_autocast_to_reduced_precision", "aten::_autocast_to_full_precision"})


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


def node_data(origin: Origin, graph: OperatorGraph, local: LocalGraph) -> NodeData:
    """Return the times of a model's operators in the traced step."""
    optimizer_us = sum(operator.us for operator in outermost(local, "optimizer"))
    weights = sum(node.weight_numel for node in graph.nodes)
    casts = _casts(graph, local)
    rows = []
    counted: set[int] = set()
    for at, node in enumerate(graph.nodes):
        forward = [] if node.forward == NO_OPERATOR else [node.forward]
        counted.update(forward, node.backward)
        rows.append(
            NodeRow(
                label=node.label,
                operator=node.name,
                depth=node.depth,
                shapes=node.shapes,
                dtypes=local.operators[node.forward].dtypes if forward else (),
                precision=node.traced,
                forward_us=_us(local, forward),
                backward_us=_us(local, node.backward),
                optimizer_us=optimizer_us * node.weight_numel / weights if weights else 0.0,
                weight_numel=node.weight_numel,
                output_numel=node.output_numel,
                saved_numel=node.saved_numel,
                casts=casts.get(at, ()),
            )
        )
    named = sum(row.forward_us + row.backward_us for row in rows)
    everything = sum(operator.us for operator in outermost(local))
    other_us = max(0.0, everything - named - optimizer_us)
    return NodeData(origin=origin, nodes=tuple(rows), optimizer_us=optimizer_us, other_us=other_us)


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


def _us(local: LocalGraph, positions: Iterable[int]) -> float:
    """Return the time of operators, those inside others of them counted once."""
    chosen = set(positions)
    return sum(local.operators[at].us for at in chosen if not chosen & set(_around(local, at)))


def _around(local: LocalGraph, position: int) -> Iterator[int]:
    """Yield the operators around one, the innermost first."""
    parent = local.operators[position].parent
    while parent != NO_OPERATOR:
        yield parent
        parent = local.operators[parent].parent


def _casts(graph: OperatorGraph, local: LocalGraph) -> Mapping[int, tuple[CastRow, ...]]:
    """Return the casts inside each operator of the graph, forward and backward."""
    owner = {call: at for at, node in enumerate(graph.nodes) for call in _calls(node)}
    rows: dict[int, list[CastRow]] = defaultdict(list)
    for position, operator in enumerate(local.operators):
        if operator.name not in CASTS:
            continue
        node = next((owner[call] for call in (position, *_around(local, position)) if call in owner), None)
        if node is not None:
            rows[node].append(
                CastRow(operator=operator.name, step_pass=operator.step_pass, shapes=operator.shapes, us=operator.us)
            )
    return {node: tuple(of_node) for node, of_node in rows.items()}


def _calls(node: OperatorNode) -> tuple[int, ...]:
    return (node.forward, *node.backward) if node.forward != NO_OPERATOR else node.backward
