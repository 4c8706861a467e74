"""Distinct calls of the operators of a traced forward pass, as far as a trace says how they were called.

Source: Kineto's arguments of an operator, "Input Dims", "Input type", "Input Strides" and "Concrete Inputs": one entry
for every argument of the operator's schema, in its order.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from predictor.replay.files.events import TraceEvent
from predictor.replay.graph.local_graph import NO_OPERATOR, LocalGraph, TracedOperator

ATEN = "aten::"
# What only looks at a tensor in another way takes the same time in every precision.
VIEWS = frozenset(
    ATEN + name
    for name in (
        "view", "reshape", "flatten", "transpose", "t", "permute", "expand", "expand_as", "unsqueeze", "squeeze",
        "slice", "select", "split", "chunk", "narrow", "detach", "alias", "as_strided", "unbind", "view_as",
        "unflatten",
    )
)  # fmt: skip
CASTS = frozenset({"aten::to", "aten::_to_copy", "aten::type_as"})
FLOATING = frozenset({"float", "c10::BFloat16", "c10::Half", "double"})


class Argument(NamedTuple):
    """One argument of a call.

    Attributes:
        kind: tensor, tensors (a list), value, or none.
        shape: of a tensor.
        dtype: of a tensor, as PyTorch names it.
        strides: of a tensor, where the trace has them.
        value: of a value.
        shapes: of the tensors of a list.
    """

    kind: str
    shape: tuple[int, ...] = ()
    dtype: str = ""
    strides: tuple[int, ...] = ()
    value: object = None
    shapes: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class OperatorCall:
    """One distinct call.

    Attributes:
        name: ``aten::linear``.
        arguments: of the schema, in its order.
        shapes: as the traced operator has them.
        dtypes: likewise.
        has_backward: autograd ran its backward in the step.
        gradients: which inputs' gradients a convolution's backward computed; None: all.
        count: calls in the step.
        us: their time in the step, both passes.
    """

    name: str
    arguments: tuple[Argument, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    has_backward: bool
    gradients: tuple[bool, ...] | None
    count: int
    us: float


def _literal(text: str) -> object:
    """Return the value of a concrete input; a text that is no literal, such as inf or a device, as it is.

    >>> _literal("[1, 1]"), _literal("1e-05"), _literal("False"), _literal("cpu")
    ([1, 1], 1e-05, False, 'cpu')
    """
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _sequence(args: Mapping[str, object], key: str) -> Sequence[object]:
    value = args.get(key)
    return value if isinstance(value, list | tuple) else ()


def _ints(value: object) -> tuple[int, ...]:
    return tuple(int(item) for item in value) if isinstance(value, list | tuple) else ()


def arguments_of(args: Mapping[str, object]) -> tuple[Argument, ...] | None:
    """Return a call's arguments; None where the trace does not have their values."""
    dims, kinds = _sequence(args, "Input Dims"), _sequence(args, "Input type")
    values, strides = _sequence(args, "Concrete Inputs"), _sequence(args, "Input Strides")
    if not kinds or len(values) != len(kinds) or len(dims) != len(kinds):
        return None
    result = []
    for position, kind in enumerate(map(str, kinds)):
        text = str(values[position])
        if kind in ("TensorList", "GenericList"):
            shapes = dims[position]
            inner = tuple(_ints(shape) for shape in shapes) if isinstance(shapes, list | tuple) else ()
            result.append(Argument("tensors", shapes=inner))
        elif kind in ("Scalar", "ScalarList") or (not kind and text):
            result.append(Argument("value", value=_literal(text)))
        elif not kind:
            result.append(Argument("none"))
        else:
            steps = _ints(strides[position]) if position < len(strides) else ()
            result.append(Argument("tensor", _ints(dims[position]), kind, steps))
    return tuple(result)


def _inner(graph: LocalGraph) -> dict[int, list[int]]:
    """Return the operators inside each."""
    inner: dict[int, list[int]] = {}
    for position, operator in enumerate(graph.operators):
        inner.setdefault(operator.parent, []).append(position)
    return inner


def _below(inner: Mapping[int, list[int]], position: int) -> Iterator[int]:
    """Yield an operator and all inside it."""
    yield position
    for child in inner.get(position, []):
        yield from _below(inner, child)


def outer_calls(graph: LocalGraph) -> list[int]:
    """Return the outermost operators of the forward pass that compute.

    Autocast calls an operator again with cast inputs: of such a pair it is the inner one.
    """
    inner = _inner(graph)
    operators = graph.operators
    result = []

    def descend(position: int) -> None:
        operator = operators[position]
        if operator.step_pass != "forward":
            return
        again = [child for child in inner.get(position, []) if operators[child].name == operator.name]
        if not operator.name.startswith(ATEN) or again:
            for child in again or inner.get(position, []):
                descend(child)
        elif operator.name not in VIEWS | CASTS:
            result.append(position)

    for position, operator in enumerate(operators):
        if operator.parent == NO_OPERATOR:
            descend(position)
    return result


def _output_mask(events: Sequence[TraceEvent], backwards: Sequence[TracedOperator]) -> tuple[bool, ...] | None:
    """Return which gradients a convolution's backward computed, the last of its concrete inputs."""
    for operator in backwards:
        if operator.name == "aten::convolution_backward":
            values = _sequence(events[operator.event].args, "Concrete Inputs")
            mask = _literal(str(values[-1])) if values else None
            if isinstance(mask, list):
                return tuple(bool(item) for item in mask)
    return None


def distinct_calls(graph: LocalGraph, events: Sequence[TraceEvent]) -> tuple[list[OperatorCall], dict[str, float]]:
    """Return the distinct calls, the longest first, and the time in µs of those without the values of their arguments.

    Args:
        graph: of a step.
        events: of its trace.
    """
    inner, operators = _inner(graph), graph.operators
    backward_of: dict[int, list[int]] = {}
    for position, operator in enumerate(operators):
        if operator.forward != NO_OPERATOR and operator.step_pass == "backward":
            backward_of.setdefault(operator.forward, []).append(position)
    calls: dict[object, OperatorCall] = {}
    unknown: dict[str, float] = {}
    for position in outer_calls(graph):
        operator = operators[position]
        nodes = {node for below in _below(inner, position) for node in backward_of.get(below, ())}
        backwards = [operators[below] for node in nodes for below in _below(inner, node)]
        us = operator.us + sum(operators[node].us for node in nodes if operators[node].parent not in nodes)
        arguments = arguments_of(events[operator.event].args)
        if arguments is None:
            unknown[operator.name] = unknown.get(operator.name, 0.0) + us
            continue
        gradients = _output_mask(events, backwards)
        key = (operator.name, repr(arguments), bool(nodes), gradients)
        known = calls.get(key)
        count, total = (known.count + 1, known.us + us) if known else (1, us)
        calls[key] = OperatorCall(
            operator.name, arguments, operator.shapes, operator.dtypes, bool(nodes), gradients, count, total
        )
    return sorted(calls.values(), key=lambda call: -call.us), unknown
