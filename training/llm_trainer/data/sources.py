"""Texts of local files, or of a data set on the Hugging Face hub, as a stream of documents.

A file's ending says how it is read: plain text (the file is one document), JSON lines (a document a line) or Parquet
(a document a row); each may be compressed with gzip, but Parquet. Imports no torch.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from llm_trainer.data.readers import ENDINGS, ending_of, read_file
from llm_trainer.exceptions import DataError

WILDCARDS = "*?["
SPLITS = ("train", "validation", "test")


@dataclass(frozen=True, slots=True)
class Source:
    """Where documents come from.

    Attributes:
        files: local files, in the order in which they are read; empty for a data set on the hub.
        hub_name: of a data set on the hub.
        hub_config: its configuration; None: its only one.
        split: its part.
        text_column: that holds the text, in all but plain text files.
    """

    files: tuple[Path, ...] = ()
    hub_name: str | None = None
    hub_config: str | None = None
    split: str = "train"
    text_column: str = "text"

    @classmethod
    def local(cls, places: str | Path | Sequence[str | Path], text_column: str = "text") -> Source:
        """Return the documents of files, folders (with their subfolders) and patterns such as ``books/*.txt``.

        Raises:
            DataError: there is no such file, or its ending is unknown.
        """
        listed = [places] if isinstance(places, str | Path) else list(places)
        files = tuple(file for place in listed for file in _expanded(Path(place).expanduser()))
        if not files:
            raise DataError("no file is named; give a file, a folder or a pattern")
        return cls(files=files, text_column=text_column)

    @classmethod
    def named(cls, name: str, config: str | None = None, split: str = "train", text_column: str = "text") -> Source:
        """Return the documents of what a name means: a local file, folder or pattern, else a data set on the hub.

        A folder may hold its splits as a data set on the hub does: in subfolders, or in files ``train.jsonl``,
        ``train-00000-of-00002.parquet``, ….

        Raises:
            DataError: a local file's ending is unknown, a pattern matches nothing, or a folder has other splits only.
        """
        folder = Path(name).expanduser()
        if folder.is_dir() and (parts := splits_of(folder)):
            if split not in parts:
                raise DataError(f"{name} has no split {split}; it has {', '.join(sorted(parts))}")
            return cls.local(parts[split], text_column)
        is_local = Path(name).expanduser().exists() or any(mark in name for mark in WILDCARDS)
        if is_local or ending_of(Path(name)) is not None or name.startswith((".", "/", "~")):
            return cls.local(name, text_column)
        return cls(hub_name=name, hub_config=config, split=split, text_column=text_column)

    def texts(self, limit: int | None = None) -> Iterator[str]:
        """Yield the documents, of which no more than one is in memory.

        Args:
            limit: documents after which reading ends.

        Raises:
            DataError: a file or a line of it is damaged, with its name and the line's number; or the hub cannot be
                reached.
        """
        return islice(self._all_texts(), limit)

    def fingerprint(self) -> str:
        """Return what tells sources apart: names, sizes and times of files; the hub's own mark of a data set.

        Raises:
            DataError: a file is missing, or the hub cannot be reached.
        """
        return hashlib.sha256(json.dumps(self._marks()).encode()).hexdigest()

    def __str__(self) -> str:
        """Return what it is called in a message."""
        if self.hub_name is not None:
            return " ".join(part for part in (self.hub_name, self.hub_config, self.split) if part)
        more = len(self.files) - 1
        return f"{self.files[0]}" + (f" and {more} more" if more else "")

    def _all_texts(self) -> Iterator[str]:
        if self.hub_name is not None:
            from llm_trainer.data.hub import hub_texts  # only where it is needed: it needs another library

            yield from hub_texts(self.hub_name, self.hub_config, self.split, self.text_column)
        for file in self.files:
            yield from read_file(file, self.text_column)

    def _marks(self) -> list[object]:
        if self.hub_name is not None:
            from llm_trainer.data.hub import hub_fingerprint

            return ["hub", hub_fingerprint(self.hub_name, self.hub_config, self.split), self.text_column]
        try:
            states = [(file.resolve(), file.stat()) for file in self.files]
        except OSError as error:
            raise DataError(f"{error.filename} cannot be read: {error.strerror}") from None
        return ["local", self.text_column, [[str(path), state.st_size, state.st_mtime_ns] for path, state in states]]


def _expanded(place: Path) -> list[Path]:
    """Return the files of a place, sorted; a folder's files of unknown endings are none of them."""
    if place.is_dir():
        files = sorted(path for path in place.rglob("*") if path.is_file() and ending_of(path) is not None)
        if not files:
            raise DataError(f"{place} holds no file that ends in one of {_known()}")
        return files
    if any(mark in str(place) for mark in WILDCARDS) and not place.exists():
        root = Path(place.anchor)
        files = sorted(path for path in root.glob(str(place.relative_to(root))) if path.is_file())
        if not files:
            raise DataError(f"no file matches {place}")
        for file in files:
            _check_ending(file)
        return files
    if not place.exists():
        raise DataError(f"{place} does not exist; give a file, a folder or a pattern")
    _check_ending(place)
    return [place]


def splits_of(folder: str | Path) -> dict[str, list[Path]]:
    """Return the files and subfolders of a local folder that are named as splits; empty where it has none."""
    parts: dict[str, list[Path]] = {}
    for path in sorted(Path(folder).expanduser().iterdir()):
        name = path.name.split("-")[0].split(".")[0]
        if name in SPLITS and (path.is_dir() or ending_of(path) is not None):
            parts.setdefault(name, []).append(path)
    return parts


def _check_ending(file: Path) -> None:
    if ending_of(file) is None:
        raise DataError(f"{file} ends in {file.suffix or 'nothing'}; expected one of {_known()}")


def _known() -> str:
    return ", ".join(ENDINGS)
