"""Readers of one file each: plain text, JSON lines, Parquet. What is damaged is named by file and line."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from llm_trainer.exceptions import DataError

COMPRESSED = ".gz"
ROWS_AT_ONCE = 1024


def ending_of(path: Path) -> str | None:
    """Return the known ending of a file's name, without that of compression; None: it is not known."""
    name = path.name.lower()
    ending = Path(name.removesuffix(COMPRESSED)).suffix
    if ending not in READERS or (ending == ".parquet" and name.endswith(COMPRESSED)):
        return None
    return ending


def read_file(path: Path, text_column: str) -> Iterator[str]:
    """Yield the documents of a file, in order, read as its ending says.

    Args:
        path: of a file whose ending is one of ``ENDINGS``, lines of text compressed with gzip or not.
        text_column: key of a JSON line, or column of a table, that holds the text.

    Raises:
        DataError: it cannot be read, or a line of it is damaged.
    """
    ending = ending_of(path)
    if ending is None:
        raise DataError(f"{path} ends in {path.suffix or 'nothing'}; expected one of {', '.join(ENDINGS)}")
    try:
        yield from READERS[ending](path, text_column)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path} is damaged: {error}") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from None


def _text(path: Path, _: str) -> Iterator[str]:
    """Yield the whole file; line feeds stay what they are."""
    with _opened(path) as stream:
        content = stream.read()
    try:
        yield content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DataError(f"{path}, line {line}: byte 0x{content[error.start]:02x} is not UTF-8; convert it") from None


def _json_lines(path: Path, text_column: str) -> Iterator[str]:
    """Yield a document a line, an empty line being none: an object with the text under its key, or the text itself."""
    with _opened(path) as stream:
        for number, line in enumerate(stream, start=1):
            if not line.strip():
                continue
            place = f"{path}, line {number}"
            try:
                row = json.loads(line)
            except UnicodeDecodeError as error:
                raise DataError(f"{place}: byte 0x{line[error.start]:02x} is not UTF-8; convert it") from None
            except (ValueError, RecursionError) as error:
                raise DataError(f"{place}: not JSON ({error}); mend or remove the line") from None
            if isinstance(row, str):
                yield row
                continue
            if not isinstance(row, dict):
                raise DataError(f"{place}: {type(row).__name__}; expected an object with the key {text_column}")
            if text_column not in row:
                raise DataError(f"{place}: no key {text_column}; text_column must be one of {', '.join(row) or 'none'}")
            if not isinstance(row[text_column], str):
                raise DataError(f"{place}: {text_column} is {json.dumps(row[text_column])[:40]}; expected text")
            yield row[text_column]


def _parquet(path: Path, text_column: str) -> Iterator[str]:
    """Yield a document a row, from batches of rows."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise DataError(f"{path} needs pyarrow, which is not installed; pip install pyarrow") from None
    try:
        with parquet.ParquetFile(path) as table:
            names = table.schema_arrow.names
            if text_column not in names:
                raise DataError(f"{path} has no column {text_column}; text_column must be one of {', '.join(names)}")
            number = 0
            for batch in table.iter_batches(ROWS_AT_ONCE, columns=[text_column]):
                for text in batch.column(0).to_pylist():
                    number += 1
                    if not isinstance(text, str):
                        raise DataError(f"{path}, row {number}: {text_column} is {text!r}; expected text")
                    yield text
    except (pyarrow.ArrowException, UnicodeDecodeError) as error:
        raise DataError(f"{path} is damaged: {' '.join(str(error).split())}") from None


def _opened(path: Path) -> IO[bytes]:
    return gzip.open(path, "rb") if path.name.lower().endswith(COMPRESSED) else path.open("rb")  # type: ignore[return-value]


READERS: dict[str, Callable[[Path, str], Iterator[str]]] = {
    **dict.fromkeys((".txt", ".text", ".md", ".rst", ".tex", ".html", ".xml"), _text),
    **dict.fromkeys(
        (".py", ".pyi", ".c", ".h", ".cc", ".cpp", ".hpp", ".cu", ".rs", ".go", ".java", ".js", ".ts"), _text
    ),
    **dict.fromkeys((".jsonl", ".ndjson"), _json_lines),
    ".parquet": _parquet,
}
ENDINGS = tuple(READERS)
