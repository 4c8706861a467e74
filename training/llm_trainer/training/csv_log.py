"""steps.csv: step, name and value of every number of a run, none twice however often it is resumed."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

from predictor.core.base.files import write_whole

HEADER = ["step", "name", "value"]


class CsvLog:
    """Rows appended to a file; those of steps that are taken again replace the earlier ones."""

    def __init__(self, path: Path) -> None:
        """Say where the file is or will be."""
        self._path = path
        self._stream: TextIO | None = None

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Write a row for every number of a step."""
        if self._stream is None:
            self._stream = self._open(step, values)
        csv.writer(self._stream).writerows([step, name, value] for name, value in values.items())
        self._stream.flush()

    def close(self) -> None:
        """Close the file."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _open(self, step: int, values: Mapping[str, float]) -> TextIO:
        kept: list[list[str]] = []
        if self._path.is_file():
            with self._path.open(newline="", encoding="utf-8") as stream:
                rows = [row for row in csv.reader(stream) if len(row) == len(HEADER) and row != HEADER]
            rows = [row for row in rows if row[0].isdigit()]
            kept = [row for row in rows if int(row[0]) < step or (int(row[0]) == step and row[1] not in values)]
        text = io.StringIO(newline="")
        csv.writer(text).writerows([HEADER, *kept])
        write_whole(self._path, text.getvalue())
        return self._path.open("a", newline="", encoding="utf-8")
