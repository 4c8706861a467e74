"""Chakra's files of protocol buffers: what is written is read, byte for byte as Google's runtime has it."""

from __future__ import annotations

import gzip
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from predictor.core.base.wire import (
    SCALARS,
    FieldValue,
    WireError,
    delimited,
    encode_field,
    encode_message,
    fields,
    read_varint,
    varint,
)
from predictor.replay.files.chakra_file import (
    KINDS,
    SCHEMA,
    Attribute,
    ChakraFile,
    ChakraNode,
    NodeType,
    decode_node,
    encode_node,
    read_chakra_file,
    write_chakra_file,
)
from predictor.replay.files.record_model import RecordError

# Of every kind of attribute: its limits and what lies between.
VALUES: dict[str, tuple[FieldValue, ...]] = {
    "double": (0.0, -1.5, 1e300, float("inf")),
    "float": (0.0, 0.25, -(2.0**100)),
    "int32": (0, -1, 2**31 - 1, -(2**31)),
    "int64": (0, -1, 2**63 - 1, -(2**63)),
    "uint32": (0, 127, 128, 2**32 - 1),
    "uint64": (0, 300, 2**64 - 1),
    "sint32": (0, -1, 1, 2**31 - 1, -(2**31)),
    "sint64": (0, -1, 1, 2**63 - 1, -(2**63)),
    "fixed32": (0, 2**32 - 1),
    "fixed64": (0, 2**64 - 1),
    "sfixed32": (-1, 2**31 - 1),
    "sfixed64": (-1, -(2**63)),
    "bool": (True, False),
    "string": ("", "µs « é »"),
    "bytes": (b"", b"\x00\xff"),
}


def node_of_everything() -> ChakraNode:
    attributes = {
        f"{kind} {number}": Attribute(kind, value) for kind in VALUES for number, value in enumerate(VALUES[kind])
    }
    attributes |= {f"{kind} list": Attribute(kind, VALUES[kind]) for kind in VALUES}
    attributes |= {f"{kind} none": Attribute(kind, ()) for kind in VALUES}
    return ChakraNode(
        2**63 + 5,
        "all",
        NodeType.COMM_COLL,
        (1, 2**40),
        (3,),
        17,
        2**33,
        ("[1]", "[[2]]", ""),
        ("", "x", "y"),
        attributes,
    )


@pytest.mark.parametrize(
    ("value", "encoded"), [(0, "00"), (1, "01"), (127, "7f"), (128, "8001"), (300, "ac02"), (-1, "ff" * 9 + "01")]
)
def test_varints(value: int, encoded: str) -> None:
    assert varint(value).hex() == encoded
    assert read_varint(bytes.fromhex("00" + encoded), 1) == (value % (1 << 64), 1 + len(encoded) // 2)


def test_fields_as_the_encoding_guide_has_them() -> None:
    assert encode_field(1, SCALARS["int32"], 150).hex() == "089601"
    assert encode_field(2, SCALARS["string"], "testing").hex() == "120774657374696e67"
    assert encode_field(1, SCALARS["sint32"], -2).hex() == "0803"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("80", "a varint at byte 0 is torn"),
        ("ff" * 11, "longer than 10 bytes"),
        ("00", "a field has number 0"),
        ("0b", "field 1 has wire type 3; expected 0, 1, 2 or 5"),
        ("0a0561", "field 1 has 1 of 5 bytes"),
        ("0d00", "field 1 has 1 of 4 bytes"),
        ("0900", "field 1 has 1 of 8 bytes"),
    ],
)
def test_bytes_that_are_no_message(content: str, message: str) -> None:
    with pytest.raises(WireError, match=message):
        list(fields(bytes.fromhex(content)))


def test_a_node_of_everything_returns() -> None:
    node = node_of_everything()
    assert set(VALUES) == set(KINDS)
    assert decode_node(encode_node(node)) == node


def test_a_file_returns(tmp_path: Path) -> None:
    file = ChakraFile([node_of_everything(), ChakraNode(0, "", NodeType.INVALID)], {"world": Attribute("int64", 4)})
    path = tmp_path / "step.0.et"
    write_chakra_file(path, file)
    read = read_chakra_file(path)
    assert read.nodes == file.nodes
    assert read.attributes == {"schema": Attribute("string", SCHEMA), "world": Attribute("int64", 4)}
    assert read.notes == []
    packed = tmp_path / "step.0.et.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert read_chakra_file(packed) == read


def test_later_schemas_are_read_as_far_as_they_are_known(tmp_path: Path) -> None:
    version = encode_message(1, b"0.0.5") + encode_message(2, encode_field(1, SCALARS["string"], "who"))
    later = (
        encode_field(3, SCALARS["uint64"], 99)
        + encode_message(11, b"\x08\x01")
        + encode_field(12, SCALARS["float"], 1.0)
    )
    unpacked = encode_field(5, SCALARS["uint64"], 7) + encode_field(5, SCALARS["uint64"], 8)
    path = tmp_path / "later.et"
    path.write_bytes(delimited(version) + delimited(later + unpacked))
    file = read_chakra_file(path)
    assert {name: attribute.value for name, attribute in file.attributes.items()} == {"version": "0.0.5", "who": ""}
    assert (file.nodes[0].type, file.nodes[0].data_deps) == (NodeType.INVALID, (7, 8))


def test_a_torn_file_keeps_its_whole_nodes(tmp_path: Path) -> None:
    path = tmp_path / "step.0.et"
    write_chakra_file(path, ChakraFile([ChakraNode(number, "n", NodeType.COMP) for number in range(5)]))
    path.write_bytes(path.read_bytes()[:-2])
    file = read_chakra_file(path)
    assert [node.id for node in file.nodes] == [0, 1, 2, 3]
    assert file.notes[0].startswith("the file is torn or damaged after 4 nodes: a message of")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is no Chakra trace: it has no node"),
        (b"<html>", "is no Chakra trace: a message of 60 bytes is torn after 5"),
        (b"\x02\x0b\x00", "is no Chakra trace"),
        (b"\x1f\x8b\x08", "cannot be read as a Chakra trace"),
    ],
)
def test_what_is_no_file_is_refused_in_one_line(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "step.0.et"
    path.write_bytes(content)
    with pytest.raises(RecordError, match=message) as refused:
        read_chakra_file(path)
    assert "\n" not in str(refused.value)
    with pytest.raises(RecordError, match="it is a folder"):
        read_chakra_file(tmp_path)


def google_messages() -> dict[str, Any]:
    """Return Google's message classes of the schema, built from the field numbers of et_def.proto."""
    pytest.importorskip("google.protobuf", reason="no protobuf runtime to compare with")
    modules = ("descriptor_pb2", "descriptor_pool", "message_factory")
    descriptor_pb2, descriptor_pool, message_factory = (import_module(f"google.protobuf.{name}") for name in modules)
    file = descriptor_pb2.FileDescriptorProto(name="et.proto", package="et", syntax="proto3")
    scalar = descriptor_pb2.FieldDescriptorProto
    for kind in KINDS:
        message = file.message_type.add(name=f"{kind}_list")
        message.field.add(
            name="values", number=1, label=scalar.LABEL_REPEATED, type=getattr(scalar, f"TYPE_{kind.upper()}")
        )
    attribute = file.message_type.add(name="Attribute")
    attribute.oneof_decl.add(name="value")
    attribute.field.add(name="name", number=1, label=1, type=scalar.TYPE_STRING)
    attribute.field.add(name="doc_string", number=2, label=1, type=scalar.TYPE_STRING)
    for position, kind in enumerate(KINDS):
        number = 3 + 2 * position
        value = {"label": 1, "oneof_index": 0}
        attribute.field.add(name=f"{kind}_val", number=number, type=getattr(scalar, f"TYPE_{kind.upper()}"), **value)
        attribute.field.add(
            name=f"{kind}_list", number=number + 1, type=scalar.TYPE_MESSAGE, type_name=f".et.{kind}_list", **value
        )
    info = file.message_type.add(name="IOInfo")
    for number, name in enumerate(("values", "shapes", "types"), 1):
        info.field.add(name=name, number=number, label=1, type=scalar.TYPE_STRING)
    node = file.message_type.add(name="Node")
    node.field.add(name="id", number=1, label=1, type=scalar.TYPE_UINT64)
    node.field.add(name="name", number=2, label=1, type=scalar.TYPE_STRING)
    node.field.add(name="type", number=3, label=1, type=scalar.TYPE_INT32)
    node.field.add(name="ctrl_deps", number=4, label=3, type=scalar.TYPE_UINT64)
    node.field.add(name="data_deps", number=5, label=3, type=scalar.TYPE_UINT64)
    node.field.add(name="start_time_micros", number=6, label=1, type=scalar.TYPE_UINT64)
    node.field.add(name="duration_micros", number=7, label=1, type=scalar.TYPE_UINT64)
    for number, name in ((8, "inputs"), (9, "outputs")):
        node.field.add(name=name, number=number, label=1, type=scalar.TYPE_MESSAGE, type_name=".et.IOInfo")
    node.field.add(name="attr", number=10, label=3, type=scalar.TYPE_MESSAGE, type_name=".et.Attribute")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"et.{name}"))
        for name in ("Node", "Attribute")
    }


def test_nodes_are_those_of_googles_runtime() -> None:
    classes = google_messages()
    node = node_of_everything()
    theirs = classes["Node"](
        id=node.id,
        name=node.name,
        type=int(node.type),
        ctrl_deps=node.ctrl_deps,
        data_deps=node.data_deps,
        start_time_micros=node.start_us,
        duration_micros=node.duration_us,
        inputs={"values": "[1]", "shapes": "[[2]]"},
        outputs={"shapes": "x", "types": "y"},
    )
    for name, (kind, value) in node.attributes.items():
        attribute = theirs.attr.add(name=name)
        if isinstance(value, tuple):
            content = getattr(attribute, f"{kind}_list")
            content.SetInParent()
            content.values.extend(value)
        else:
            setattr(attribute, f"{kind}_val", value)
    assert theirs.SerializeToString(deterministic=True) == encode_node(node)
    assert decode_node(theirs.SerializeToString()) == node
