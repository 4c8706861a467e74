"""Read Chakra execution traces: the operators of a step as a tree, with the tensors that they read and write.

PyTorch's ExecutionTraceObserver writes JSON without times: since schema 1.0.2 with ``ctrl_deps`` and ``attrs``, before
with everything at the node's top level. Chakra's tools write protocol buffers (``.et``), which have durations and
dependencies.

Source: PyTorch, torch/csrc/profiler/standalone/execution_trace_observer.cpp.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from predictor.replay.files.chakra_file import ChakraNode, read_chakra_file
from predictor.replay.files.json_stream import stream_events
from predictor.replay.files.record_model import RecordError
from predictor.replay.files.trace_bytes import first_bytes

NO_NODE = -1
NO_ATTRIBUTES: Mapping[str, object] = MappingProxyType({})
TENSOR = re.compile(r"Tensor\(((?:[^()]|\([^()]*\))*)\)")
TENSOR_FIELDS = 6  # tensor, storage, offset, elements, bytes of an element, device
AT_TOP = ("rf_id", "fw_parent", "seq_id", "scope", "tid", "fw_tid", "op_schema")  # of the older form


class ExecutionTensor(NamedTuple):
    """A tensor as an operator reads or writes it.

    Attributes:
        tensor: id of the tensor; of its storage, which views share.
        offset: elements from the start of the storage.
        dtype: as PyTorch names it: ``float``, ``c10::BFloat16``.
    """

    tensor: int
    storage: int
    offset: int
    numel: int
    itemsize: int
    device: str
    shape: tuple[int, ...]
    dtype: str


class ExecutionNode(NamedTuple):
    """A call of an operator, or an annotation.

    Attributes:
        parent: id of the node around it; NO_NODE: none.
        record_function: PyTorch's number of the call (rf_id); 0: none.
        sequence: autograd's number of it; -1: none.
        thread: number of its thread in the order in which threads began.
        forward_thread: of a backward operator, the thread of its forward pass; 0: none.
        after: ids of the nodes of which it needs the results, where the trace says so.
        duration_us: None where the trace has no times.
    """

    id: int
    name: str
    parent: int
    inputs: tuple[ExecutionTensor, ...] = ()
    outputs: tuple[ExecutionTensor, ...] = ()
    record_function: int = 0
    sequence: int = -1
    thread: int = 0
    forward_thread: int = 0
    after: tuple[int, ...] = ()
    duration_us: float | None = None
    attributes: Mapping[str, object] = NO_ATTRIBUTES


@dataclass(frozen=True, slots=True)
class ExecutionTrace:
    """The execution trace of one rank.

    Attributes:
        schema: version of its form.
        nodes: by id, which is the order in which they began.
        notes: what could not be used, one line each.
    """

    path: Path
    schema: str
    nodes: Sequence[ExecutionNode]
    notes: Sequence[str] = ()
    facts: Mapping[str, object] = field(default_factory=dict)

    def children(self) -> dict[int, list[ExecutionNode]]:
        """Return the nodes inside of each one, by its id, in their order; those without a parent under NO_NODE."""
        inside: dict[int, list[ExecutionNode]] = {}
        for node in self.nodes:
            inside.setdefault(node.parent, []).append(node)
        return inside


def read_execution_trace(path: Path) -> ExecutionTrace:
    """Read an execution trace: JSON (.json, .json.gz, also in an archive, .tar.gz) or protocol buffers (.et).

    Raises:
        RecordError: it cannot be read, is no execution trace, or no node of it is whole.
    """
    if _is_json(path):
        return _from_json(path)
    file = read_chakra_file(path)
    schema = file.attributes.get("schema", file.attributes.get("version"))
    nodes = sorted(map(_from_chakra, file.nodes), key=lambda node: node.id)
    return ExecutionTrace(path, str(schema.value) if schema else "", nodes, tuple(file.notes))


def _is_json(path: Path) -> bool:
    try:
        with path.open("rb") as stream:
            return first_bytes(stream).startswith(b"{")
    except OSError as error:
        reason = "it is a folder" if path.is_dir() else error.strerror
        raise RecordError(f"{path} cannot be read as an execution trace: {reason}") from None


def _from_json(path: Path) -> ExecutionTrace:
    nodes: list[ExecutionNode] = []
    bad = 0

    def take(items: Sequence[object]) -> None:
        nonlocal bad
        for item in items:
            node = _node(item) if isinstance(item, dict) else None
            if node is None:
                bad += 1
            else:
                nodes.append(node)

    file = stream_events(path, take, "nodes")
    notes = [*file.notes, *([f"{bad} nodes have no id or no name; left out"] if bad else [])]
    if not nodes:
        why = f" ({'; '.join(notes)})" if notes else ""
        raise RecordError(f"{path} has no node that is whole{why}")
    nodes.sort(key=lambda node: node.id)
    return ExecutionTrace(path, str(file.facts.get("schema", "")), nodes, notes, file.facts)


def _node(item: Mapping[str, Any]) -> ExecutionNode | None:
    """Return a node of either JSON form; None for one without id or name."""
    identity, name = item.get("id"), item.get("name")
    if type(identity) is not int or not isinstance(name, str):
        return None
    listed = item.get("attrs")
    if isinstance(listed, list):
        attributes = {str(entry.get("name")): entry.get("value") for entry in listed if isinstance(entry, dict)}
    else:
        attributes = {key: item[key] for key in AT_TOP if key in item}
    parent = _integer(item.get("ctrl_deps", item.get("parent")), NO_NODE)
    return ExecutionNode(
        identity,
        name,
        NO_NODE if parent == identity else parent,
        tuple(_tensors_of(item, "input")),
        tuple(_tensors_of(item, "output")),
        *_numbers(attributes),
        attributes=attributes,
    )


def _numbers(attributes: Mapping[str, object]) -> tuple[int, int, int, int]:
    """Return record function, sequence, thread and forward thread."""
    rf_id, seq_id, tid, fw_tid = (attributes.get(key) for key in ("rf_id", "seq_id", "tid", "fw_tid"))
    return _integer(rf_id, 0), _integer(seq_id, -1), _integer(tid, 0), _integer(fw_tid, 0)


def _integer(value: object, otherwise: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else otherwise


def _tensors_of(item: Mapping[str, Any], side: str) -> Iterator[ExecutionTensor]:
    """Return the tensors among a node's inputs or outputs, those in lists included."""
    values = item.get(f"{side}s")
    if isinstance(values, dict):
        return _tensors(values.get("values"), values.get("shapes"), values.get("types"))
    return _tensors(values, item.get(f"{side}_shapes"), item.get(f"{side}_types"))


def _tensors(values: object, shapes: object, types: object) -> Iterator[ExecutionTensor]:
    if not (isinstance(values, list) and isinstance(shapes, list) and isinstance(types, list)):
        return
    for value, shape, kind in zip(values, shapes, types, strict=False):
        dtypes = iter(TENSOR.findall(str(kind)))
        for record, sizes in _records(value, shape):
            tensor, storage, offset, numel, itemsize, device = record
            dtype = next(dtypes, "")
            yield ExecutionTensor(tensor, storage, offset, numel, itemsize, device, _shape(sizes), dtype)


def _records(value: object, shape: object) -> Iterator[tuple[list[Any], object]]:
    """Return the tensors in a value, each with its shape."""
    if not isinstance(value, list):
        return
    if len(value) == TENSOR_FIELDS and isinstance(value[-1], str) and all(type(part) is int for part in value[:-1]):
        yield value, shape
        return
    shapes = shape if isinstance(shape, list) else []
    for number, part in enumerate(value):
        yield from _records(part, shapes[number] if number < len(shapes) else [])


def _shape(sizes: object) -> tuple[int, ...]:
    return tuple(size for size in sizes if isinstance(size, int)) if isinstance(sizes, list) else ()


def _from_chakra(node: ChakraNode) -> ExecutionNode:
    attributes = {name: attribute.value for name, attribute in node.attributes.items()}
    parent = node.ctrl_deps[0] if node.ctrl_deps else NO_NODE
    return ExecutionNode(
        node.id,
        node.name,
        NO_NODE if parent == node.id else parent,
        tuple(_tensors(*map(_listed, node.inputs))),
        tuple(_tensors(*map(_listed, node.outputs))),
        *_numbers(attributes),
        after=node.data_deps,
        duration_us=float(node.duration_us),
        attributes={**attributes, "type": node.type.name},
    )


def _listed(text: str) -> object:
    """Return a list that was written as text, as JSON or as Python prints it; None where it is none."""
    for parse in (json.loads, ast.literal_eval):
        try:
            return parse(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
    return None
