"""Files that grow, are renamed, truncated, compressed, or not there yet."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

from predictor.watch.sources.growing_file import BLOCK, GrowingFile, is_rotated


def read(file: GrowingFile) -> bytes:
    return b"".join(file.blocks())


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as stream:
        stream.write(data)


def test_only_what_is_new_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    file = GrowingFile(path)
    assert read(file) == b""
    path.write_bytes(b"one\n")
    assert read(file) == b"one\n"
    assert read(file) == b""
    append(path, b"tw")
    append(path, b"o\n")
    assert read(file) == b"two\n"
    assert file.generation == 1


def test_a_large_file_comes_in_blocks(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(bytes(BLOCK + 10))
    assert [len(block) for block in GrowingFile(path).blocks()] == [BLOCK, 10]
    assert [len(block) for block in GrowingFile(path, 1 << 19).blocks()] == [1 << 19, 1 << 19, 10]


def test_a_renamed_file_is_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"one\n")
    file = GrowingFile(path)
    assert read(file) == b"one\n"
    append(path, b"two\n")
    path.rename(tmp_path / "a.log.1")
    append(tmp_path / "a.log.1", b"three\n")
    path.write_bytes(b"four\n")
    assert read(file) == b"two\nthree\nfour\n"
    assert file.generation == 2


def test_older_parts_come_first(tmp_path: Path) -> None:
    for name, data in (("a.log.10", b"1"), ("a.log.1", b"3"), ("a.log", b"4"), ("a.log.old", b"x"), ("b.log.1", b"x")):
        (tmp_path / name).write_bytes(data)
    (tmp_path / "a.log.2.gz").write_bytes(gzip.compress(b"2"))
    file = GrowingFile(tmp_path / "a.log")
    assert read(file) == b"1234"
    assert file.generation == 1
    append(tmp_path / "a.log", b"5")
    assert read(file) == b"5"
    assert is_rotated(tmp_path / "a.log.2.gz")
    assert not is_rotated(tmp_path / "b.log.1")


@pytest.mark.parametrize("data", [b"new\n", b"new and longer than before\n"])
def test_a_truncated_file_begins_anew(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"one and two\n")
    file = GrowingFile(path)
    read(file)
    path.write_bytes(data)
    assert read(file) == data
    assert file.generation == 2


def test_a_file_that_vanished_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"one\n")
    file = GrowingFile(path)
    read(file)
    path.unlink()
    assert read(file) == b""
    (tmp_path / "other").write_bytes(b"two\n")  # of another inode
    (tmp_path / "other").replace(path)
    assert read(file) == b"two\n"


def test_a_damaged_archive_gives_what_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "a.log.gz"
    path.write_bytes(gzip.compress(os.urandom(3 * BLOCK))[: 2 * BLOCK])
    assert len(read(GrowingFile(path))) <= 2 * BLOCK
    path.write_bytes(b"no archive")
    assert read(GrowingFile(path)) == b""
