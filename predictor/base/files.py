"""Write files atomically: a reader sees the old or the new content, and a full disk keeps the old."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def built_beside(path: Path) -> Iterator[Path]:
    """Yield a temporary path that replaces ``path`` at the end, or is removed if writing failed."""
    building = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield building
        building.replace(path)
    finally:
        building.unlink(missing_ok=True)


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
    with built_beside(place) as building:
        with building.open("wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        if place.exists():
            building.chmod(place.stat().st_mode)
