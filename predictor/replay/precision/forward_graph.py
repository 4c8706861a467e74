"""The operators of a traced step as a graph to choose precisions in."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from itertools import repeat
from math import prod
from typing import NamedTuple

from predictor.replay.files.execution_trace import ExecutionTrace
from predictor.replay.graph.local_graph import NO_OPERATOR, LocalGraph, TracedOperator
from predictor.replay.precision.cost_sources import TracedTimes
from predictor.replay.precision.dataflow import Call, Flow, RecordedFlow, guessed_flow, recorded_flow
from predictor.replay.precision.nesting import Inside
from predictor.replay.precision.operator_config import OperatorConfig, own_operators
from predictor.replay.precision.operator_graph import OperatorGraph, OperatorNode, Precision, Tensor
from predictor.replay.precision.rules import widest
from predictor.replay.precision.work_of_shapes import MULTIPLIES, output_numel

DTYPES = {
    "float": Precision.FP32,
    "c10::Half": Precision.FP16,
    "c10::BFloat16": Precision.BF16,
    "c10::Float8_e4m3fn": Precision.FP8,
    "c10::Float8_e5m2": Precision.FP8,
}
LISTS = ("TensorList", "GenericList")
PRECISIONS = (Precision.FP32, Precision.FP16, Precision.BF16, Precision.INT8)
ENOUGH_IN_COMMON = 0.9  # of a step's calls, to take the dataflow of an execution trace for theirs


def operator_graph(
    local: LocalGraph,
    execution_trace: ExecutionTrace | None = None,
    config: OperatorConfig | None = None,
    precisions: Sequence[Precision] = PRECISIONS,
) -> OperatorGraph:
    """Return the graph of a step's tracked forward operators, the outermost ones, each with its backward.

    Args:
        local: the step.
        execution_trace: of a step of the same model, which need not be the same step. Without one, or with one of
            another model, who reads whose output is guessed from sizes; ``facts["flow"]`` says which.
        config: what is known of operators; None for what the project knows.
        precisions: to choose between; those in which an operator was traced are added.

    Returns:
        Weights that stay in fp32, such as those of norms and embeddings, are in ``facts["other_weight_numel"]``.
    """
    config = config or own_operators()
    inside = Inside.of(local)
    positions = list(_tracked(local, inside, config))
    recorded = None if execution_trace is None else _recorded(local, positions, execution_trace, config)
    operators = [local.operators[position] for position in positions]
    if recorded is not None:
        operators = [_with_shapes(operator, recorded, number) for number, operator in enumerate(operators)]
    calls = list(map(_call, operators, _readers(operators), repeat(config)))
    flows, outputs, facts = _flows(calls, recorded)
    depths = [0] * len(calls)
    for producer, consumer, _ in flows:
        depths[consumer] = max(depths[consumer], depths[producer] + 1)
    backward = _backward(local, inside, positions, config)
    counts: defaultdict[str, int] = defaultdict(int)
    nodes = []
    for number, (position, operator) in enumerate(zip(positions, operators, strict=True)):
        traced = _precision(local, inside, position, operator, config)
        weights = _weights(operator, config) if config.is_changeable(operator.name) else ()
        node = OperatorNode(
            name=operator.name,
            label=f"{operator.name}.{counts[operator.name]}",
            depth=depths[number],
            shapes=operator.shapes,
            weight_numel=sum(weights),
            output_numel=outputs[number],
            saved_numel=_saved(calls[number], outputs[number], config),
            choices=_choices(operator, local.backend, traced, precisions, config),
            forward=position,
            backward=backward.get(position, ()),
            traced=traced,
            weight_numels=weights,
        )
        nodes.append(node)
        counts[operator.name] += 1
    others = (operator for operator in operators if not config.is_changeable(operator.name))
    facts["other_weight_numel"] = sum(map(sum, (_weights(operator, config) for operator in others)))
    return OperatorGraph(nodes, [Tensor(*flow) for flow in flows], facts)


def _choices(
    operator: TracedOperator, backend: str, traced: Precision, wanted: Sequence[Precision], config: OperatorConfig
) -> tuple[Precision, ...]:
    """Return the precisions to choose between, the traced one included; none: as the inputs are."""
    choices = config.choices(operator.name, backend, tuple(wanted))
    if not choices or traced in choices:
        return choices
    return (traced,) if config.stays_fp32(operator.name, backend) else (*choices, traced)


def _tracked(local: LocalGraph, inside: Inside, config: OperatorConfig) -> Iterator[int]:
    """Yield the outermost tracked operators of the forward pass, in their order."""
    waiting = list(inside.children.get(NO_OPERATOR, ()))[::-1]
    while waiting:
        position = waiting.pop()
        operator = local.operators[position]
        if operator.step_pass == "forward" and operator.name in config.tracked:
            yield position
        elif operator.step_pass in ("forward", "other"):
            waiting += list(inside.children.get(position, ()))[::-1]


class _Recorded(NamedTuple):
    """The calls of an execution trace, and which of them each call of the step is; facts about it."""

    flow: RecordedFlow
    here: Mapping[int, int]  # of a recorded call, the number of the step's call
    there: Mapping[int, int]  # the other way round
    facts: Mapping[str, object]


def _recorded(
    local: LocalGraph, positions: Sequence[int], trace: ExecutionTrace, config: OperatorConfig
) -> _Recorded | None:
    """Tie a step's calls to those of an execution trace by their order; None where too few are the same."""
    flow = recorded_flow(trace, config)
    names = [local.operators[position].name for position in positions]
    matcher = SequenceMatcher(None, names, [call.name for call in flow.calls], autojunk=False)
    blocks = matcher.get_matching_blocks()
    here = {other + step: own + step for own, other, size in blocks for step in range(size)}
    if len(here) < ENOUGH_IN_COMMON * max(len(names), 1):
        return None
    facts = {"flow": "recorded", "execution_trace": trace.path.name, "calls_in_common": len(here)}
    return _Recorded(flow, here, {own: other for other, own in here.items()}, facts)


def _with_shapes(operator: TracedOperator, recorded: _Recorded, number: int) -> TracedOperator:
    """Return an operator with the shapes of the execution trace where its own trace has none."""
    if any(operator.shapes) or number not in recorded.there:
        return operator
    call = recorded.flow.calls[recorded.there[number]]
    return operator._replace(shapes=call.shapes, dtypes=call.dtypes)


def _readers(operators: Sequence[TracedOperator]) -> list[TracedOperator | None]:
    """Return, for each operator, the next one that has shapes."""
    readers: list[TracedOperator | None] = []
    reader: TracedOperator | None = None
    for operator in reversed(operators):
        readers.append(reader)
        reader = operator if any(operator.shapes) else reader
    return readers[::-1]


def _call(operator: TracedOperator, reader: TracedOperator | None, config: OperatorConfig) -> Call:
    if any(operator.dtypes) and not set(operator.dtypes) & {*DTYPES, "double", *LISTS}:
        return Call(operator.name, (), 0)  # of integers
    kind = config.of(config.work, operator.name)
    outputs = output_numel(kind, operator.shapes) if kind is not None else 0
    if not outputs and reader is not None:
        outputs = _read_next(operator, reader)
    read = tuple(operator.shapes[at] for at in _activations(operator, config))
    return Call(operator.name, read if any(operator.shapes) else None, outputs, kind in MULTIPLIES)


def _read_next(operator: TracedOperator, reader: TracedOperator) -> int:
    """Return the elements of the next operator's input where it can be this one's output: of as many samples."""
    shape = reader.shapes[0] if reader.shapes else ()
    own = operator.shapes[0] if operator.shapes else shape
    return prod(shape) if shape and (not own or shape[0] == own[0]) else 0


def _activations(operator: TracedOperator, config: OperatorConfig) -> list[int]:
    """Return the positions of inputs that are floating-point tensors and no weights."""
    weights = config.of(config.weights, operator.name) or ()
    return [
        at
        for at, shape in enumerate(operator.shapes)
        if shape and at not in weights and (at >= len(operator.dtypes) or operator.dtypes[at] in DTYPES)
    ]


def _weights(operator: TracedOperator, config: OperatorConfig) -> tuple[int, ...]:
    """Return the elements of each of an operator's weights."""
    positions = config.of(config.weights, operator.name) or ()
    return tuple(prod(operator.shapes[at]) for at in positions if at < len(operator.shapes) and operator.shapes[at])


def _saved(call: Call, outputs: int, config: OperatorConfig) -> int:
    read = sum(map(prod, call.activations or ()))
    of_kind = {"inputs": read, "output": outputs, "both": read + outputs, "mask": outputs}
    return of_kind.get(config.of(config.saves, call.name) or "", 0)


def _precision(
    local: LocalGraph, inside: Inside, position: int, operator: TracedOperator, config: OperatorConfig
) -> Precision:
    """Return in what an operator computed: the widest of its inputs, as autocast calls it again inside."""
    again = position
    while True:
        inner = [child for child in inside.children.get(again, ()) if local.operators[child].name == operator.name]
        if not inner:
            break
        again = inner[0]
    called = local.operators[again] if again != position else operator
    known = [DTYPES[called.dtypes[at]] for at in _activations(called, config) if at < len(called.dtypes)]
    return widest(known) if known else Precision.FP32


def _flows(calls: Sequence[Call], recorded: _Recorded | None) -> tuple[list[Flow], list[int], dict[str, object]]:
    """Return who reads whose output, the elements of every output, and what is known of both."""
    guessed, unknown = guessed_flow(calls)
    outputs = [call.output_numel for call in calls]
    if recorded is None:
        return guessed, outputs, {"flow": "guessed from sizes", "inputs_of_unknown_origin": unknown}
    here = recorded.here
    flows = [
        Flow(here[producer], here[consumer], numel)
        for producer, consumer, numel in recorded.flow.flows
        if producer in here and consumer in here
    ]
    flows += [flow for flow in guessed if flow.consumer not in recorded.there or flow.producer not in recorded.there]
    for other, own in here.items():
        outputs[own] = recorded.flow.calls[other].output_numel or outputs[own]
    return sorted(flows), outputs, dict(recorded.facts)


def _backward(
    local: LocalGraph, inside: Inside, positions: Sequence[int], config: OperatorConfig
) -> dict[int, tuple[int, ...]]:
    """Return the outermost backward operators of each forward one, without those of casts inside it.

    Those that the trace ties to no forward operator are taken in the reverse order of the forward pass, by the names
    that the configuration gives.
    """
    backward: dict[int, tuple[int, ...]] = {}
    tied: set[int] = set()
    for position in positions:
        casts = {below for cast in inside.casts(local, [position]) for below in inside.below(cast)}
        own = [at for below in inside.below(position) if below not in casts for at in inside.backward.get(below, ())]
        tied.update(own)
        backward[position] = _outermost(local, own)
    free: defaultdict[str, list[int]] = defaultdict(list)
    for at, operator in enumerate(local.operators):
        if operator.step_pass == "backward" and operator.forward == NO_OPERATOR and at not in tied:
            free[operator.name.rsplit(" ", 1)[-1].lower()].append(at)
    for position in reversed(positions):
        if backward[position] or not free:
            continue
        names = config.of(config.aten_op_to_bwd_mapper, local.operators[position].name) or ()
        for name in names:
            if free.get(name):
                backward[position] = _outermost(local, [_pop_with_inner(local, free, name)])
                break
    return backward


def _pop_with_inner(local: LocalGraph, free: dict[str, list[int]], name: str) -> int:
    """Take the next backward operator of a name, with the operator of the same name inside it."""
    at = free[name].pop(0)
    while free[name] and local.operators[free[name][0]].parent == at:
        free[name].pop(0)
    return at


def _outermost(local: LocalGraph, positions: Sequence[int]) -> tuple[int, ...]:
    chosen = set(positions)
    outer = []
    for position in sorted(chosen):
        parent = local.operators[position].parent
        while parent != NO_OPERATOR and parent not in chosen:
            parent = local.operators[parent].parent
        if parent == NO_OPERATOR:
            outer.append(position)
    return tuple(outer)


def traced_times(local: LocalGraph, graph: OperatorGraph) -> TracedTimes:
    """Return how long a graph's operators took in the step that it was made of, casts inside them left out."""
    inside = Inside.of(local)

    def us(positions: Sequence[int]) -> float:
        whole = sum(local.operators[at].us for at in positions)
        return max(0.0, whole - sum(local.operators[at].us for at in inside.casts(local, positions)))

    forward = {node.label: us([node.forward]) for node in graph.nodes if node.forward != NO_OPERATOR}
    backward = {node.label: us(node.backward) for node in graph.nodes if node.backward}
    return TracedTimes(graph, forward, backward)
