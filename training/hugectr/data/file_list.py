"""File lists: the number of data files, then their paths, a line each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hugectr.exceptions import DataError
from predictor.core.base.files import write_whole


def read_file_list(path: Path) -> tuple[Path, ...]:
    """Return the data files of a list.

    A relative path counts from the working folder, as HugeCTR reads it; where there is no such file, from the list's.

    Raises:
        DataError: the list is missing, is no text, its number is not that of its paths, or a file does not exist.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise DataError(f"{path} does not exist; expected a file list") from None
    except IsADirectoryError:
        raise DataError(f"{path} is a folder; expected a file list") from None
    except UnicodeDecodeError:
        raise DataError(f"{path} is no text; expected a file list: a number, then a path on each line") from None
    stripped = [line.strip() for line in lines]
    if not stripped or not stripped[0].isascii() or not stripped[0].isdigit():
        first = stripped[0][:40] if stripped else ""
        raise DataError(f"{path}, line 1: {first!r}; expected the number of data files")
    names = [line for line in stripped[1:] if line]
    if len(names) != int(stripped[0]):
        raise DataError(f"{path} lists {len(names)} files; its first line says {stripped[0]}")
    if not names:
        raise DataError(f"{path} lists no data file")
    return tuple(_located(path, number, name) for number, name in enumerate(stripped[1:], start=2) if name)


def _located(path: Path, line: int, name: str) -> Path:
    for candidate in (Path(name), path.parent / name):
        if candidate.is_file():
            return candidate
    raise DataError(f"{path}, line {line}: {name} does not exist")


def write_file_list(path: Path, files: Sequence[Path]) -> None:
    """Write a list."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, "\n".join([str(len(files)), *map(str, files)]) + "\n")
