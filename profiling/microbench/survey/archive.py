"""Results folder of a survey in one compressed file, rewritten while the survey runs.

Tables grow at their end only. So an archive may be taken at any moment, and a later one of the same tables begins with
the bytes of the earlier one: unpacking it over what is there loses nothing, or is refused.
"""

from __future__ import annotations

import tarfile
import threading
from collections.abc import Callable
from pathlib import Path

from microbench.errors import MeasureError
from microbench.table import cut_torn
from predictor.core.base.files import atomic_file, write_whole

ARCHIVE = "results.tar.gz"
SUMMARY = "survey.json"
GROWING = ".csv"


def pack(folder: Path, archive: Path) -> None:
    """Pack a folder into an archive atomically: a reader sees the old or the new one."""
    with atomic_file(archive) as building, tarfile.open(building, "w:gz", compresslevel=6) as tar:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and not path.name.startswith("."):
                tar.add(path, arcname=path.relative_to(folder).as_posix(), recursive=False)


class Saver:
    """Packs a folder again and again in a thread, and once more at the end; use it in a ``with`` statement."""

    def __init__(self, folder: Path, archive: Path, every_s: float, say: Callable[[str], None]) -> None:
        """Keep the folder, the archive, the seconds between two packings, and what takes a line of progress."""
        self._folder, self._archive, self._every_s, self._say = folder, archive, every_s, say
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._save, daemon=True)

    def __enter__(self) -> Saver:
        """Start packing."""
        self._archive.parent.mkdir(parents=True, exist_ok=True)
        pack(self._folder, self._archive)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Pack what there is at the end."""
        self._end.set()
        self._thread.join()
        pack(self._folder, self._archive)

    def _save(self) -> None:
        while not self._end.wait(self._every_s):
            try:
                pack(self._folder, self._archive)
            except OSError as error:  # a full disk, say: the archive before it is whole, and the next one may succeed
                self._say(f"{self._archive}: not saved: {error}; tried again in {self._every_s:g} s")


def unpack(archive: Path, into: Path) -> list[Path]:
    """Unpack an archive into a folder, over earlier states of the same tables; return the written paths.

    Raises:
        MeasureError: no archive, a name that leads out of the folder, or a table of which the folder holds other rows.
    """
    try:
        with tarfile.open(archive) as tar:
            content = {member.name: _bytes(tar, member, archive) for member in tar.getmembers()}
    except (OSError, tarfile.TarError, EOFError) as error:
        raise MeasureError(f"{archive}: not an archive of a survey: {error}") from None
    for name, new in content.items():
        path = into / name
        if name.endswith(GROWING) and path.is_file() and not new.startswith(path.read_bytes()):
            raise MeasureError(
                f"{path} holds rows that {archive} lacks: they were measured apart; unpack into another folder"
            )
    written = []
    for name, new in content.items():
        path = into / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, new)
        written.append(path)
    for path in written:
        if path.suffix == GROWING:
            cut_torn(path)
    return written


def _bytes(tar: tarfile.TarFile, member: tarfile.TarInfo, archive: Path) -> bytes:
    path = Path(member.name)
    stream = tar.extractfile(member) if member.isfile() else None
    if stream is None or path.is_absolute() or ".." in path.parts:
        raise MeasureError(f"{archive}: {member.name} is not a file of a results folder")
    return stream.read()
