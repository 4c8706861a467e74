"""Files of a checkpoint: written with their checksums, and read without running code.

A part is what ``torch.save`` writes, restricted to tensors, numbers, text and containers of them, and is read with
``weights_only``. CRC-32 over the whole file finds damage; it costs a third of SHA-256 and replaces the CRC-32 that
torch's archive would carry, so that writing takes about as long as ``torch.save``.
"""

from __future__ import annotations

import os
import zlib
from collections import Counter, OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict

from model_training_framework.trainer.errors import CheckpointError, TrainerError

READ_AT_ONCE = 1 << 22
STORABLE = {type(None), bool, int, float, complex, str, bytes, torch.Size, torch.dtype, torch.device}
CONTAINERS = {list, tuple, set, dict, OrderedDict, Counter}


class FileEntry(BaseModel):
    """What was written to a file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    size_bytes: int
    crc32: str


class _Summing:
    """A file that keeps the checksum of what is written to it, and the first error."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.size_bytes = 0
        self.crc = 0
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        self.crc = zlib.crc32(data, self.crc)
        try:
            written: int = self._stream.write(data)
        except OSError as error:
            self.error = self.error or error
            raise
        self.size_bytes += written
        return written

    def flush(self) -> None:
        self._stream.flush()


def write_part(path: Path, content: Mapping[str, Any]) -> FileEntry:
    """Write a part; ``make_durable`` brings it down to the disk.

    Raises:
        OSError: it cannot be written.
    """
    has_crc = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        with path.open("wb") as stream:
            summing = _Summing(stream)
            try:
                torch.save(dict(content), summing)
            except RuntimeError as error:  # torch's archive writer hides the reason
                raise summing.error or error from None
            stream.flush()
    finally:
        torch.serialization.set_crc32_options(has_crc)
    return FileEntry(size_bytes=summing.size_bytes, crc32=f"{summing.crc:08x}")


def entry_of(path: Path) -> FileEntry:
    """Return what is in a file now."""
    crc = size = 0
    with path.open("rb") as stream:
        while data := stream.read(READ_AT_ONCE):
            crc, size = zlib.crc32(data, crc), size + len(data)
    return FileEntry(size_bytes=size, crc32=f"{crc:08x}")


def difference(path: Path, entry: FileEntry) -> str:
    """Return how a file differs from what was written, for a message; empty if it does not."""
    try:
        found = entry_of(path)
    except OSError as error:
        return f"{path.name} cannot be read: {error.strerror or error}"
    if found.size_bytes != entry.size_bytes:
        return f"{path.name} has {found.size_bytes:,} bytes of {entry.size_bytes:,}"
    return "" if found.crc32 == entry.crc32 else f"{path.name} has CRC-32 {found.crc32}, was {entry.crc32}"


def read_part(path: Path) -> dict[str, Any]:
    """Read a part; nothing in it can run.

    Raises:
        CheckpointError: it cannot be read, or is more than tensors, numbers and text.
    """
    try:
        content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, torch.serialization.pickle.UnpicklingError) as error:
        raise CheckpointError(f"{path} cannot be read: {str(error).splitlines()[0]}") from error
    return content


def check_storable(value: Any, where: str) -> None:
    """Check that a state can be stored without code, before anything is written.

    Raises:
        TrainerError: something in it is of another type; the message says where.
    """
    kind = type(value)
    if kind in STORABLE or isinstance(value, torch.Tensor):
        return
    if kind not in CONTAINERS:
        raise TrainerError(
            f"{where} is a {kind.__module__}.{kind.__qualname__}; a checkpoint keeps tensors, numbers, text and "
            "containers of them, as it must not run code when read: convert it in state_dict()"
        )
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in items:
        if type(item) not in STORABLE:
            check_storable(item, f"{where}[{key!r}]")


def make_durable(path: Path) -> None:
    """Bring a file's content, or a folder's entries, down to the disk.

    Raises:
        OSError: the disk failed.
    """
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
