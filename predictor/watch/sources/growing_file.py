"""A file that another process writes: new bytes since the last call, through rotation, truncation and compression."""

from __future__ import annotations

import gzip
import os
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

BLOCK = 1 << 20
HEAD = 64  # bytes by which a file is known again
_ROTATED = re.compile(r"\.(\d{1,4})(\.gz)?$")


class GrowingFile:
    """Reads a file to its end, again and again. No file stays open between calls.

    A file renamed to ``name.1`` is read to its end before the new one. Older ones (``name.1``, ``name.2.gz``) come
    first. Where the file was truncated or replaced, reading begins anew.
    """

    def __init__(self, path: Path, block: int = BLOCK) -> None:
        """Name the file, which need not be there yet.

        Args:
            path: of the file.
            block: bytes that are read at once.
        """
        self.path = path
        self.block = block
        self._offset = 0
        self._file_id: tuple[int, int] | None = None
        self._written = (-1, -1)  # size and time when it was read last
        self._head = b""
        self._has_begun = False
        self.generation = 0  # counts the files that were begun

    def blocks(self) -> Iterator[bytes]:
        """Return the bytes since the last call; none where the file is not there, or cannot be read."""
        if not self._has_begun:
            for older in _rotated(self.path):
                self._has_begun = True
                yield from _whole(older)
        try:
            state = self.path.stat()
        except OSError:
            return
        file_id = (state.st_dev, state.st_ino)
        written = (state.st_size, state.st_mtime_ns)
        if file_id == self._file_id and written == self._written:
            return
        if self._file_id is not None and file_id != self._file_id:
            yield from self._rest_of_renamed()
            self._begin_anew()
        self._written = written
        try:
            yield from self._new(file_id)
        except OSError:
            return

    @property
    def written_at(self) -> float | None:
        """Return when it was written last."""
        try:
            return self.path.stat().st_mtime
        except OSError:
            return None

    def _begin_anew(self) -> None:
        self._offset, self._head = 0, b""

    def _new(self, file_id: tuple[int, int]) -> Iterator[bytes]:
        if self.path.suffix == ".gz":
            if file_id != self._file_id:
                self._file_id, self._has_begun = file_id, True
                self.generation += 1
                yield from _whole(self.path)
            return
        with self.path.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            head = stream.read(HEAD)
        if size < self._offset or not head.startswith(self._head):
            self._begin_anew()
        if not self._offset:
            self.generation += 1
        self._file_id, self._has_begun, self._head = file_id, True, head
        # No further than the size seen: a file that grows faster than it is read would never return.
        while self._offset < size:
            with self.path.open("rb") as stream:  # anew: many files are read side by side
                stream.seek(self._offset)
                block = stream.read(min(self.block, size - self._offset))
            if not block:
                return
            self._offset += len(block)
            yield block

    def _rest_of_renamed(self) -> Iterator[bytes]:
        """Return what the file had gained before it was renamed beside its old place."""
        for other in _rotated(self.path):
            try:
                state = other.stat()
                if (state.st_dev, state.st_ino) == self._file_id and other.suffix != ".gz":
                    with other.open("rb") as stream:
                        yield from _to_end(stream, self._offset)
            except OSError:
                continue


def _to_end(stream: BinaryIO, offset: int) -> Iterator[bytes]:
    stream.seek(offset)
    while block := stream.read(BLOCK):
        yield block


def _whole(path: Path) -> Iterator[bytes]:
    """Return a file that is complete, or what can be read of it."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            while block := stream.read(BLOCK):
                yield block
    except (OSError, EOFError, zlib.error):
        return


def _rotated(path: Path) -> list[Path]:
    """Return the files that a file was renamed to, the oldest first."""
    try:
        names = [other.name for other in path.parent.iterdir() if other.name.startswith(path.name)]
    except OSError:
        return []
    found = [(name, number) for name in names if (number := _ROTATED.fullmatch(name[len(path.name) :]))]
    return [path.with_name(name) for name, number in sorted(found, key=lambda each: -int(each[1][1]))]


def is_rotated(path: Path) -> bool:
    """Return whether a file is an older part of another one that lies beside it."""
    number = _ROTATED.search(path.name)
    return number is not None and path.with_name(path.name[: number.start()]).exists()
