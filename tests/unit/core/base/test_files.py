"""A file is put in place whole or not at all."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from predictor.core.base.files import atomic_file, write_whole


def test_text_and_bytes_replace_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_whole(path, "first, µs\n")
    assert path.read_bytes() == "first, µs\n".encode()
    path.chmod(0o600)
    write_whole(path, b"second")
    assert path.read_bytes() == b"second"
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_write_keeps_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def killed() -> None:
        with atomic_file(path) as building:
            building.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        killed()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_stays_a_link_and_a_pipe_a_pipe(tmp_path: Path) -> None:
    target, link, pipe = tmp_path / "target", tmp_path / "link", tmp_path / "pipe"
    target.write_text("old")
    link.symlink_to(target)
    write_whole(link, "new")
    assert link.is_symlink()
    assert target.read_text() == "new"
    os.mkfifo(pipe)
    writer = threading.Thread(target=write_whole, args=(pipe, "through"), daemon=True)
    writer.start()
    assert pipe.read_text() == "through"
    writer.join(timeout=10.0)
    assert pipe.is_fifo()


def test_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_whole(tmp_path / "absent" / "file", "text")
