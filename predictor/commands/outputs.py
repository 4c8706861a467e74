"""Output files of a command: named before any work is done, written once all contents are known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from predictor.core.base.errors import ConfigError
from predictor.core.base.files import write_whole


class Output(NamedTuple):
    """A file that an option names.

    Attributes:
        option: of the command line.
        name: of the file; None: it is not asked for.
        text: returns its content.
    """

    option: str
    name: str | None
    text: Callable[[], str]


def check_outputs(named: Sequence[tuple[str, str | None]], inputs: Sequence[str | Path | None] = ()) -> None:
    """Check that a command's files can be written beside one another and beside what it reads.

    Args:
        named: option and file, None where it is not asked for.
        inputs: files that the same command reads.

    Raises:
        ConfigError: one is given twice, is read as well, or its folder does not exist.
    """
    taken = {Path(name).resolve() for name in inputs if name is not None}
    for option, name in named:
        if name is None:
            continue
        place = Path(name).resolve()
        if place in taken:
            raise ConfigError(f"{option} {name}: the same command reads or writes it; name another file")
        if not name.strip() or place.is_dir():
            raise ConfigError(f"{option} {name!r}: expected a file, not a folder")
        if not place.parent.is_dir():
            raise ConfigError(f"{option} {name}: there is no folder {place.parent}; make it first")
        taken.add(place)


def write_outputs(outputs: Sequence[Output]) -> list[str]:
    """Write the files that are asked for, and return a line about each; no file before all contents are known.

    Raises:
        ConfigError: one cannot be written.
    """
    contents = [(output.option, output.name, output.text()) for output in outputs if output.name is not None]
    return [_write(*content) for content in contents]


def _write(option: str, name: str, text: str) -> str:
    path = Path(name)
    try:
        write_whole(path, text)
    except OSError as error:
        raise ConfigError(f"{option} {name}: {error.strerror}") from None
    return f"wrote {path}, {path.stat().st_size:,} bytes"
