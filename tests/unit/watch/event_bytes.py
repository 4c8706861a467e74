"""Bytes of TensorBoard's and W&B's files, as their writers encode them."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping, Sequence

from predictor.core.base.wire import SCALARS, encode_field, encode_message


def tfrecord(message: bytes) -> bytes:
    """Return a record; its checksums, which readers may skip, are zero."""
    return struct.pack("<Q", len(message)) + bytes(4) + message + bytes(4)


def scalar(tag: str, value: float, step: int, at: float, as_tensor: bool = False) -> bytes:
    """Return the record of a scalar, as TensorBoard 1 or 2 has it."""
    number = encode_field(2, SCALARS["float"], value)
    if as_tensor:
        tensor = encode_field(1, SCALARS["int32"], 1) + encode_message(4, struct.pack("<f", value))
        number = encode_message(8, tensor)
    summary = encode_message(1, encode_field(1, SCALARS["string"], tag) + number)
    event = encode_field(1, SCALARS["double"], at) + encode_field(2, SCALARS["int64"], step)
    return tfrecord(event + encode_message(5, summary))


def version(at: float) -> bytes:
    """Return the first record of an event file."""
    return tfrecord(encode_field(1, SCALARS["double"], at) + encode_field(3, SCALARS["string"], "brain.Event:2"))


def wandb_file(records: Sequence[bytes]) -> bytes:
    """Return a transaction log: a header, then records cut over blocks of 32 KiB."""
    data = bytearray(struct.pack("<4sHB", b":W&B", 0xBEE1, 0))
    for record in records:
        rest, is_first = record, True
        while is_first or rest:
            left = 32768 - len(data) % 32768
            if left < 7:
                data += bytes(left)
                left = 32768
            part, rest = rest[: left - 7], rest[left - 7 :]
            kind = {(True, True): 1, (True, False): 2, (False, False): 3, (False, True): 4}[is_first, not rest]
            data += struct.pack("<IHB", zlib.crc32(part, zlib.crc32(bytes([kind]))), len(part), kind) + part
            is_first = False
    return bytes(data)


def history(row: Mapping[str, object], step: int) -> bytes:
    """Return the record of a row of history; keys are nested as current versions write them."""
    items = b"".join(
        encode_message(
            1, encode_field(2, SCALARS["string"], key) + encode_field(16, SCALARS["string"], json.dumps(value))
        )
        for key, value in row.items()
    )
    return encode_message(2, items + encode_message(2, encode_field(1, SCALARS["int64"], step)))


def run(host: str, at: int) -> bytes:
    """Return the record that begins a run."""
    start = encode_message(17, encode_field(1, SCALARS["int64"], at))
    return encode_message(17, encode_field(13, SCALARS["string"], host) + start)


def ended(code: int) -> bytes:
    """Return the record of a run's end."""
    return encode_message(18, encode_field(1, SCALARS["int32"], code))
