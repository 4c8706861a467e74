"""Dataflow of a forward pass: producers and consumers as an execution trace recorded them, or guessed from sizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import NamedTuple

from predictor.replay.files.execution_trace import NO_NODE, ExecutionNode, ExecutionTrace
from predictor.replay.precision.operator_config import OperatorConfig

COPIES = frozenset({"aten::contiguous", "aten::cat", "aten::constant_pad_nd"})
NOT_FORWARD = ("autograd::", "Optimizer.", "torch::autograd::", "record_param_comms", "gloo:", "nccl:")


class Call(NamedTuple):
    """One call of a tracked operator in a forward pass.

    Attributes:
        name: of the operator.
        activations: shapes of its inputs that are no weights; None where the trace has no shapes.
        output_numel: elements of its output; 0 where unknown.
        is_product: it multiplies by weights or activations.
    """

    name: str
    activations: tuple[tuple[int, ...], ...] | None
    output_numel: int
    is_product: bool = False


class Flow(NamedTuple):
    """What one call reads of another: positions of calls, and elements."""

    producer: int
    consumer: int
    numel: int


class RecordedCall(NamedTuple):
    """A call of a tracked operator, with the shapes and types of the tensors that it reads, numbers left out."""

    name: str
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    output_numel: int


class RecordedFlow(NamedTuple):
    """The calls of a forward pass, and who reads whose output."""

    calls: Sequence[RecordedCall]
    flows: Sequence[Flow]


def recorded_flow(trace: ExecutionTrace, config: OperatorConfig) -> RecordedFlow:
    """Return the dataflow between the tracked operators of an execution trace.

    A tensor is followed by its storage, which views share; what writes to a storage is its new producer. Operators that
    are not tracked pass on what they read, and what reads nothing tracked produces data. Backward calls are left out.
    """
    calls: list[RecordedCall] = []
    flows: dict[tuple[int, int], int] = {}
    producers: dict[int, tuple[int, ...]] = {}
    for node in _calls(trace, config):
        read = {tensor.storage: producers.get(tensor.storage, ()) for tensor in node.inputs}
        made_by = tuple(dict.fromkeys(producer for known in read.values() for producer in known))
        if node.name in config.tracked:
            at = len(calls)
            for tensor in node.inputs:
                for producer in read[tensor.storage]:
                    flows[producer, at] = max(flows.get((producer, at), 0), tensor.numel)
            output = max((tensor.numel for tensor in node.outputs), default=0)
            shapes = tuple(tensor.shape for tensor in node.inputs)
            calls.append(RecordedCall(node.name, shapes, tuple(tensor.dtype for tensor in node.inputs), output))
            made_by = (at,)
        for tensor in node.outputs:
            producers[tensor.storage] = made_by
    return RecordedFlow(calls, [Flow(*pair, numel) for pair, numel in sorted(flows.items())])


def _calls(trace: ExecutionTrace, config: OperatorConfig) -> Iterator[ExecutionNode]:
    """Yield the calls of the forward pass: tracked ones whole, and of the others the innermost."""
    children = trace.children()
    known = {node.id for node in trace.nodes}
    waiting = [node for node in trace.nodes if node.parent == NO_NODE or node.parent not in known][::-1]
    while waiting:
        node = waiting.pop()
        if node.name.startswith(NOT_FORWARD) or node.forward_thread > 0:
            continue
        inside = [child for child in children.get(node.id, ()) if child.id != node.id]
        if node.name in config.tracked or not inside:
            yield node
        else:
            waiting += inside[::-1]


def guessed_flow(calls: Sequence[Call]) -> tuple[list[Flow], int]:
    """Return a dataflow guessed from sizes.

    An input is an earlier output of as many elements: the first input the latest of them. Further inputs are the latest
    that nothing read yet, otherwise the latest that is no product or copy, as a residual connection is. A product right
    after one that reads as much, such as key after query, reads the same; two without anything between them are rare.
    What reads only integers, as an embedding does, reads no operator. Without shapes all calls are a chain.

    Returns:
        The flows, and how many inputs had the size of no earlier output.
    """
    flows: dict[tuple[int, int], int] = {}
    first_of: dict[int, int] = {}  # producer of a call's first input
    was_read: set[int] = set()
    unknown = 0
    for at, call in enumerate(calls):
        if call.activations is None:
            if at:
                flows[at - 1, at] = calls[at - 1].output_numel
            continue
        used: list[int] = []
        for shape in call.activations:
            numel = prod(shape)
            producer = None
            if not used and at and _reads_the_same(calls[at - 1], call):
                producer = first_of.get(at - 1)
            if producer is None:
                producer = _likely(calls, at, numel, used, was_read)
            if producer is None:
                unknown += 1
                producer = at - 1 if not used and at else None
            if producer is not None:
                used.append(producer)
                flows[producer, at] = numel
        was_read.update(used)
        if used:
            first_of[at] = used[0]
    return [Flow(*pair, numel) for pair, numel in sorted(flows.items())], unknown


def _reads_the_same(before: Call, call: Call) -> bool:
    return before.is_product and call.is_product and before.activations == call.activations


def _likely(calls: Sequence[Call], at: int, numel: int, used: Sequence[int], was_read: set[int]) -> int | None:
    """Return the earlier call whose output an input most likely is."""
    fitting = [back for back in range(at - 1, -1, -1) if calls[back].output_numel == numel and back not in used]
    if not used or not fitting:
        return fitting[0] if fitting else None
    unread = (back for back in fitting if back not in was_read)
    residual = (back for back in fitting if not calls[back].is_product and calls[back].name not in COPIES)
    return next(unread, next(residual, fitting[0]))
