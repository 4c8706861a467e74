"""Protocol-buffer wire format: fields of an encoded message, and files of many messages.

A message is a sequence of fields, each a key (field number and wire type) and a value; a file has the length of each
message before it. This is all that files of Chakra, TensorBoard and W&B need, so that neither Google's runtime nor
generated code is required: the runtime refuses generated code of other major versions, and would be the only compiled
dependency of a prediction. Tests compare it, byte for byte, with Google's runtime where that is installed.

Source: "Protocol Buffers: Encoding", protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
MASK64 = (1 << 64) - 1
LONGEST_VARINT = 10
ONE_BYTE = [bytes([value]) for value in range(0x80)]  # varints below 128: most keys, lengths and kinds
FieldValue = int | float | bool | str | bytes


class WireError(ValueError):
    """Bytes that are no message; the text says what is wrong."""


class Field(NamedTuple):
    """A field of a message; the value is an int of a VARINT, else its bytes."""

    number: int
    wire_type: int
    value: int | bytes


class Scalar(NamedTuple):
    """How values of a type are encoded: into the bytes after the key, and from a field's value."""

    wire_type: int
    encode: Callable[[FieldValue], bytes]
    decode: Callable[[int | bytes], FieldValue]


def varint(value: int) -> bytes:
    """Return an integer as a varint; a negative one as its 64 bits, which takes ten bytes."""
    if 0 <= value < 0x80:
        return ONE_BYTE[value]
    value &= MASK64
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the varint at a position, and the position behind it.

    Raises:
        WireError: it is torn, or longer than ten bytes.
    """
    value = 0
    for number in range(LONGEST_VARINT):
        if at + number >= len(data):
            raise WireError(f"a varint at byte {at} is torn")
        byte = data[at + number]
        value |= (byte & 0x7F) << 7 * number
        if byte < 0x80:
            return value & MASK64, at + number + 1
    raise WireError(f"a varint at byte {at} is longer than {LONGEST_VARINT} bytes")


def key(number: int, wire_type: int) -> bytes:
    """Return the key of a field."""
    return varint(number << 3 | wire_type)


def encode_field(number: int, scalar: Scalar, value: FieldValue) -> bytes:
    """Return a field of one value."""
    return key(number, scalar.wire_type) + scalar.encode(value)


def encode_message(number: int, message: bytes) -> bytes:
    """Return a field that holds a message, or packed values."""
    return key(number, LENGTH) + varint(len(message)) + message


def fields(data: bytes) -> Iterator[Field]:
    """Return the fields of a message in their order.

    Raises:
        WireError: the bytes are no message.
    """
    at = 0
    while at < len(data):
        tag, at = read_varint(data, at)
        number, wire_type = tag >> 3, tag & 7
        if not number:
            raise WireError("a field has number 0")
        value: int | bytes
        if wire_type == VARINT:
            value, at = read_varint(data, at)
        elif wire_type in (FIXED64, FIXED32, LENGTH):
            size = {FIXED64: 8, FIXED32: 4}.get(wire_type, 0)
            if wire_type == LENGTH:
                size, at = read_varint(data, at)
            value = data[at : at + size]
            at += size
            if len(value) < size:
                raise WireError(f"field {number} has {len(value)} of {size} bytes")
        else:
            raise WireError(f"field {number} has wire type {wire_type}; expected 0, 1, 2 or 5")
        yield Field(number, wire_type, value)


def packed(data: bytes, scalar: Scalar) -> Iterator[FieldValue]:
    """Return the values of a packed field.

    Raises:
        WireError: the last one is torn.
    """
    at = 0
    size = {FIXED64: 8, FIXED32: 4}.get(scalar.wire_type, 0)
    while at < len(data):
        if scalar.wire_type == VARINT:
            value, at = read_varint(data, at)
            yield scalar.decode(value)
        else:
            if at + size > len(data):
                raise WireError("packed values are torn")
            yield scalar.decode(data[at : at + size])
            at += size


def delimited(message: bytes) -> bytes:
    """Return a message with its length before it."""
    return varint(len(message)) + message


def messages(data: bytes) -> Iterator[bytes]:
    """Return the messages of a file; those before a torn one are returned first.

    Raises:
        WireError: a message is torn.
    """
    at = 0
    while at < len(data):
        size, begin = read_varint(data, at)
        at = begin + size
        if at > len(data):
            raise WireError(f"a message of {size} bytes is torn after {len(data) - begin}")
        yield data[begin:at]


def _signed(value: int | bytes) -> int:
    number = _integer(value)
    return number - (1 << 64) if number >> 63 else number


def _signed32(value: int | bytes) -> int:
    number = _integer(value) & 0xFFFFFFFF
    return number - (1 << 32) if number >> 31 else number


def _integer(value: int | bytes) -> int:
    if not isinstance(value, int):
        raise WireError("a number is written as bytes")
    return value


def _zigzag(value: FieldValue) -> bytes:
    number = int(value)
    return varint(number << 1 if number >= 0 else -number * 2 - 1)


def _from_zigzag(value: int | bytes) -> int:
    number = _integer(value)
    return number >> 1 ^ -(number & 1)


def _raw(value: int | bytes) -> bytes:
    if not isinstance(value, bytes):
        raise WireError("bytes are written as a number")
    return value


def _text(value: int | bytes) -> str:
    return _raw(value).decode("utf-8", "replace")


def _with_length(value: FieldValue) -> bytes:
    content = value.encode() if isinstance(value, str) else value
    if not isinstance(content, bytes):
        raise TypeError(f"{value!r} is neither text nor bytes")
    return varint(len(content)) + content


def _fixed(wire_type: int, form: str) -> Scalar:
    def decode(value: int | bytes) -> FieldValue:
        content = _raw(value)
        if len(content) != struct.calcsize(form):
            raise WireError(f"a number has {len(content)} bytes; expected {struct.calcsize(form)}")
        number: int | float = struct.unpack(form, content)[0]
        return number

    return Scalar(wire_type, lambda value: struct.pack(form, value), decode)


def _varint(decode: Callable[[int | bytes], FieldValue]) -> Scalar:
    return Scalar(VARINT, lambda value: varint(int(value)), decode)


SCALARS = {
    "double": _fixed(FIXED64, "<d"),
    "float": _fixed(FIXED32, "<f"),
    "int32": _varint(_signed32),
    "int64": _varint(_signed),
    "uint32": _varint(lambda value: _integer(value) & 0xFFFFFFFF),
    "uint64": _varint(_integer),
    "sint32": Scalar(VARINT, _zigzag, _from_zigzag),
    "sint64": Scalar(VARINT, _zigzag, _from_zigzag),
    "fixed32": _fixed(FIXED32, "<I"),
    "fixed64": _fixed(FIXED64, "<Q"),
    "sfixed32": _fixed(FIXED32, "<i"),
    "sfixed64": _fixed(FIXED64, "<q"),
    "bool": _varint(lambda value: bool(_integer(value))),
    "string": Scalar(LENGTH, _with_length, _text),
    "bytes": Scalar(LENGTH, _with_length, _raw),
}
