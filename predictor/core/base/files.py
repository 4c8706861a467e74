"""Write files atomically: a reader sees the old or the new content, and a full disk keeps the old."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path that replaces ``path`` at the end, or is removed if writing failed."""
    building = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield building
        building.replace(path)
    finally:
        building.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder that replaces ``path`` at the end, or is removed if writing failed.

    Folders cannot be exchanged in one call everywhere: an earlier folder is moved aside for the moment between two
    renames, and whoever reads then finds none, never half of one.
    """
    building, earlier = (path.with_name(f".{path.name}.{os.getpid()}.{role}") for role in ("new", "old"))
    building.mkdir()
    try:
        yield building
        if path.exists():
            path.rename(earlier)
        try:
            building.rename(path)
        except OSError:
            if earlier.exists():
                earlier.rename(path)
            raise
    finally:
        shutil.rmtree(building, ignore_errors=True)
        shutil.rmtree(earlier, ignore_errors=True)


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file atomically; a pipe or a device is written directly, a link is followed.

    Args:
        path: in a folder that exists.
        content: text is written as UTF-8.

    Raises:
        OSError: it cannot be written; the old content is kept.
    """
    data = content.encode() if isinstance(content, str) else content
    place = path.resolve()
    if place.exists() and not place.is_file():
        place.write_bytes(data)
        return
    with atomic_file(place) as building:
        with building.open("wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        if place.exists():
            building.chmod(place.stat().st_mode)
