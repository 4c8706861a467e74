"""Chakra execution traces as network simulators read them: one file of protocol buffers for each rank (``.et``).

The first message of a file is its metadata, every other one a node: computation with a duration, a collective, a send
or a receive, with the nodes of the same rank that it waits for.

Source: MLCommons Chakra, schema/protobuf/et_def.proto (field numbers below), src/third_party/utils/protolib.py (a
length before each message). The metadata had its attributes as field 1, which is its version in later schemas.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from predictor.core.base.files import write_whole
from predictor.core.base.wire import (
    LENGTH,
    SCALARS,
    Field,
    FieldValue,
    WireError,
    delimited,
    encode_field,
    encode_message,
    fields,
    messages,
    packed,
)
from predictor.replay.files.record_model import RecordError

SCHEMA = "1.1.1-chakra.0.0.4"
KINDS = tuple(SCALARS)  # of attributes, in the order of their field numbers: a value, then a list of them
FIRST_VALUE = 3
NAME, DOC = 1, 2
UINT64, STRING = SCALARS["uint64"], SCALARS["string"]


class NodeType(IntEnum):
    """What a node does."""

    INVALID = 0
    METADATA = 1
    MEM_LOAD = 2
    MEM_STORE = 3
    COMP = 4
    COMM_SEND = 5
    COMM_RECV = 6
    COMM_COLL = 7


class CollectiveType(IntEnum):
    """Which collective a node runs."""

    ALL_REDUCE = 0
    REDUCE = 1
    ALL_GATHER = 2
    GATHER = 3
    SCATTER = 4
    BROADCAST = 5
    ALL_TO_ALL = 6
    REDUCE_SCATTER = 7
    REDUCE_SCATTER_BLOCK = 8
    BARRIER = 9


class Attribute(NamedTuple):
    """An attribute's value and type: ``int64``, ``string`` …; a tuple of values is a list of that type."""

    kind: str
    value: FieldValue | tuple[FieldValue, ...]


@dataclass(frozen=True, slots=True)
class ChakraNode:
    """A node; times in whole microseconds.

    Attributes:
        ctrl_deps: nodes that must have ended, by their id: in order of the program.
        data_deps: likewise, as their results are needed.
        inputs: values, shapes and types as text; empty where unknown.
        outputs: likewise.
    """

    id: int
    name: str
    type: NodeType
    ctrl_deps: tuple[int, ...] = ()
    data_deps: tuple[int, ...] = ()
    start_us: int = 0
    duration_us: int = 0
    inputs: tuple[str, str, str] = ("", "", "")
    outputs: tuple[str, str, str] = ("", "", "")
    attributes: Mapping[str, Attribute] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ChakraFile:
    """The nodes of one rank, in the order of the file, and the attributes of the file."""

    nodes: Sequence[ChakraNode]
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    notes: Sequence[str] = ()


def write_chakra_file(path: Path, file: ChakraFile) -> None:
    """Write a file of one rank, whole or not at all.

    Raises:
        OSError: it cannot be written.
    """
    # Readers take a message of no length for the end of the file, so that the metadata always says its schema.
    metadata = {"schema": Attribute("string", SCHEMA), **file.attributes}
    head = b"".join(encode_message(1, _encoded(name, attribute)) for name, attribute in metadata.items())
    write_whole(path, delimited(head) + b"".join(delimited(encode_node(node)) for node in file.nodes))


def read_chakra_file(path: Path) -> ChakraFile:
    """Read a file of one rank, also a compressed one; of a torn one what is whole, with a note.

    Raises:
        RecordError: it cannot be read, or is no such file.
    """
    try:
        content = path.read_bytes()
        content = gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
    except (OSError, EOFError, zlib.error) as error:
        reason = "it is a folder" if path.is_dir() else getattr(error, "strerror", None) or error
        raise RecordError(f"{path} cannot be read as a Chakra trace: {reason}") from None
    nodes: list[ChakraNode] = []
    attributes: Mapping[str, Attribute] | None = None
    notes: list[str] = []
    try:
        for message in messages(content):
            if attributes is None:
                attributes = _decoded_metadata(message)
            else:
                nodes.append(decode_node(message))
    except WireError as error:
        if not nodes:
            raise RecordError(f"{path} is no Chakra trace: {error}") from None
        notes.append(f"the file is torn or damaged after {len(nodes)} nodes: {error}")
    if not nodes:
        raise RecordError(f"{path} is no Chakra trace: it has no node")
    return ChakraFile(nodes, attributes or {}, notes)


def encode_node(node: ChakraNode) -> bytes:
    """Return a node as a message, its fields in the order of their numbers and those of value 0 left out."""
    parts = [
        encode_field(1, UINT64, node.id) if node.id else b"",
        encode_field(2, STRING, node.name) if node.name else b"",
        encode_field(3, UINT64, int(node.type)) if node.type else b"",
        _encoded_ids(4, node.ctrl_deps),
        _encoded_ids(5, node.data_deps),
        encode_field(6, UINT64, node.start_us) if node.start_us else b"",
        encode_field(7, UINT64, node.duration_us) if node.duration_us else b"",
        _encoded_io(8, node.inputs),
        _encoded_io(9, node.outputs),
    ]
    parts += [encode_message(10, _encoded(name, attribute)) for name, attribute in node.attributes.items()]
    return b"".join(parts)


def decode_node(message: bytes) -> ChakraNode:
    """Return a node of a message; fields of later schemas are passed over.

    Raises:
        WireError: it is no node.
    """
    numbers: dict[int, int] = {}
    name = ""
    lists: dict[int, list[int]] = {4: [], 5: []}
    io = {8: ("", "", ""), 9: ("", "", "")}
    attributes: dict[str, Attribute] = {}
    for part in fields(message):
        if part.number in (1, 3, 6, 7):
            numbers[part.number] = int(UINT64.decode(part.value))
        elif part.number == NAME + 1:
            name = str(STRING.decode(part.value))
        elif part.number in lists:
            lists[part.number] += [int(value) for value in _values(part, "uint64")]
        elif part.number in io:
            io[part.number] = _decoded_io(_message(part))
        elif part.number == 10:
            attributes.update([_decoded(_message(part))])
    try:
        kind = NodeType(numbers.get(3, 0))
    except ValueError:
        kind = NodeType.INVALID  # a type of a later schema
    deps = (tuple(lists[4]), tuple(lists[5]))
    times = (numbers.get(6, 0), numbers.get(7, 0))
    return ChakraNode(numbers.get(1, 0), name, kind, *deps, *times, io[8], io[9], attributes)


def _message(part: Field) -> bytes:
    if part.wire_type != LENGTH or not isinstance(part.value, bytes):
        raise WireError(f"field {part.number} is no message")
    return part.value


def _values(part: Field, kind: str) -> Iterator[FieldValue]:
    """Return the values of a repeated field, packed or not."""
    scalar = SCALARS[kind]
    if part.wire_type == LENGTH and scalar.wire_type != LENGTH and isinstance(part.value, bytes):
        return packed(part.value, scalar)
    return iter((scalar.decode(part.value),))


def _encoded_ids(number: int, ids: Iterable[int]) -> bytes:
    content = b"".join(UINT64.encode(value) for value in ids)
    return encode_message(number, content) if content else b""


def _encoded_io(number: int, texts: Sequence[str]) -> bytes:
    content = b"".join(encode_field(position, STRING, text) for position, text in enumerate(texts, 1) if text)
    return encode_message(number, content) if content else b""


def _decoded_io(message: bytes) -> tuple[str, str, str]:
    texts = {part.number: str(STRING.decode(part.value)) for part in fields(message) if part.number <= 3}
    return texts.get(1, ""), texts.get(2, ""), texts.get(3, "")


@lru_cache(maxsize=256)
def _head(name: str, kind: str) -> tuple[bytes, int]:
    """Return an attribute's name as a field, and the number of the field of its value."""
    return encode_field(NAME, STRING, name), FIRST_VALUE + 2 * KINDS.index(kind)


def _encoded(name: str, attribute: Attribute) -> bytes:
    """Return an attribute as a message."""
    scalar = SCALARS[attribute.kind]
    head, number = _head(name, attribute.kind)
    if not isinstance(attribute.value, tuple):
        return head + encode_field(number, scalar, attribute.value)
    if scalar.wire_type == LENGTH:
        content = b"".join(encode_field(1, scalar, value) for value in attribute.value)
    else:
        values = b"".join(scalar.encode(value) for value in attribute.value)
        content = encode_message(1, values) if values else b""
    return head + encode_message(number + 1, content)


def _decoded(message: bytes) -> tuple[str, Attribute]:
    """Return the name and value of an attribute; one without a value is an empty text.

    Raises:
        WireError: it is no attribute.
    """
    name = ""
    attribute = Attribute("string", "")
    for part in fields(message):
        position, is_list = divmod(part.number - FIRST_VALUE, 2)
        if part.number == NAME:
            name = str(STRING.decode(part.value))
        elif part.number != DOC and position < len(KINDS):
            kind = KINDS[position]
            if is_list:
                inner = (value for each in fields(_message(part)) if each.number == 1 for value in _values(each, kind))
                attribute = Attribute(kind, tuple(inner))
            else:
                attribute = Attribute(kind, SCALARS[kind].decode(part.value))
    return name, attribute


def _decoded_metadata(message: bytes) -> dict[str, Attribute]:
    """Return the attributes of a file, of the older and the newer schema."""
    attributes: dict[str, Attribute] = {}
    for part in fields(message):
        content = _message(part)
        try:
            name, attribute = _decoded(content)
        except WireError:
            name, attribute = "", Attribute("string", "")
        if name:
            attributes[name] = attribute
        elif part.number == 1:
            attributes["version"] = Attribute("string", content.decode("utf-8", "replace"))
        else:
            raise WireError("the metadata has an attribute without a name")
    return attributes
