"""Shown output: ``python -m tests.gallery`` runs the commands of README.md and of pages of docs again, and writes it.

A block starts with three backticks and ``console``; its commands stand behind ``$``, with what they print below. Every
block runs in a copy of docs/gallery, where files that earlier blocks wrote are there. ``| head -N`` cuts an output.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

from predictor.__main__ import main as predictor_main
from predictor.core.report import text
from predictor.recommender.report import prediction as recommender

ROOT = Path(__file__).resolve().parents[1]
PAGE, FILES = ROOT / "docs" / "gallery.md", ROOT / "docs" / "gallery"
PAGES = (PAGE, *(ROOT / "docs" / f"{name}.md" for name in ("plan", "troubleshooting", "watch")), ROOT / "README.md")
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^\$ (.*)$", re.MULTILINE)
PROGRAM = ["python", "-m", "predictor"]
ROUNDING = 2e-3
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")


class Ran(NamedTuple):
    """A command of the gallery with what it prints and its exit code."""

    command: str
    output: str
    code: int


class GalleryError(ValueError):
    """A command that the gallery cannot run."""


@contextmanager
def folder() -> Iterator[Path]:
    """Enter a copy of the gallery's files, from which other files of the repository have the same relative paths."""
    with tempfile.TemporaryDirectory() as name:
        copy = Path(name) / "docs" / "gallery"
        shutil.copytree(FILES, copy)
        (Path(name) / "profiling").symlink_to(ROOT / "profiling")
        (Path(name) / "docs" / "traces").symlink_to(ROOT / "docs" / "traces")
        before = Path.cwd()
        os.chdir(copy)
        try:
            yield copy
        finally:
            os.chdir(before)


def _head(words: list[str]) -> tuple[list[str], int | None]:
    """Return a command without its ``| head -N``, and N."""
    if "|" not in words:
        return words, None
    at = words.index("|")
    if words[at + 1 : at + 2] != ["head"] or not re.fullmatch(r"-\d+", words[-1]) or len(words) != at + 3:
        raise GalleryError(f"only | head -N stands behind a command: {shlex.join(words)}")
    return words[:at], int(words[-1][1:])


def _short_path(path: Path) -> str:
    """Return a path as it reads from the repository or from the gallery."""
    base = ROOT if path.is_relative_to(ROOT) else Path.cwd()
    return str(path.resolve().relative_to(base.resolve()))


def run(command: str) -> Ran:
    """Run a command of the gallery in the current folder; nothing in its output tells of this machine.

    Raises:
        GalleryError: it is no command of the predictor.
    """
    words, lines = _head(shlex.split(command, comments=True))
    if words[0] == "cat" and len(words) == 2:
        output, code = Path(words[1]).read_text(encoding="utf-8"), 0
    elif words[:3] == PROGRAM:
        printed = TextIOWrapper(BytesIO(), encoding="utf-8", write_through=True)
        with redirect_stdout(printed), redirect_stderr(printed), ExitStack() as patched:
            for module in (text, recommender):
                patched.enter_context(patch.object(module, "short_path", _short_path))
            code = predictor_main(words[3:])
        printed.seek(0)
        output = printed.read()
    else:
        raise GalleryError(f"{command}: the gallery runs python -m predictor and cat FILE")
    return Ran(command, "\n".join(line.rstrip() for line in output.splitlines()[:lines]).rstrip(), code)


def blocks(page: str) -> list[list[tuple[str, str]]]:
    """Return every block's commands, each with the output that the page shows."""
    found = []
    for block in BLOCK.findall(page):
        _, *parts = COMMAND.split(block)
        found.append([(command, output.strip("\n")) for command, output in zip(parts[::2], parts[1::2], strict=True)])
    return found


def rewritten(page: str) -> str:
    """Return the page with the output that its commands have now."""

    def again(block: re.Match[str]) -> str:
        shown = []
        for command in COMMAND.findall(block[1]):
            output = run(command).output
            shown.append(f"$ {command}\n{output}\n" if output else f"$ {command}\n")
        return "```console\n" + "\n".join(shown) + "```"

    with folder():
        return BLOCK.sub(again, page)


def words_and_numbers(output: str) -> tuple[list[str], list[str]]:
    """Return an output's words, whatever the space between them, and its numbers as they are written.

    Sizes of files are left out.
    """
    output = re.sub(r"[\d,]+ bytes", "bytes", output)
    return NUMBER.sub("#", output).split(), NUMBER.findall(output)


def same_number(one: str, other: str) -> bool:
    """Return whether two numbers differ by no more than rounding: 0.2 %, or one in the last decimal.

    >>> same_number("25.5", "25.6"), same_number("12", "13"), same_number("4,396", "4,397")
    (True, False, True)
    """
    decimals = min(len(number.partition(".")[2]) for number in (one, other))
    last = 10.0**-decimals if decimals else 0.0
    first, second = (float(number.replace(",", "")) for number in (one, other))
    return abs(first - second) <= max(ROUNDING * max(first, second), 1.0001 * last)


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(rewritten(page.read_text(encoding="utf-8")), encoding="utf-8")
        sys.stderr.write(f"wrote {page.relative_to(ROOT)}\n")
