"""The script that another one calls with its arguments (« TP=2 bash run.sh 7B 8 »), where it lies beside it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from predictor.formats.shell.script import parse
from predictor.formats.shell.words import ASSIGNMENT, is_unknown

CALLS = re.compile(r"\.(?:sh|slurm|sbatch)\b")
CALLERS = ("bash", "sh", "sbatch", "exec", "nohup")
# A script that takes its own arguments one by one reads other values than their places say.
TAKES_IN_TURN = re.compile(r"^\s*shift\b|\bgetopts\b", re.MULTILINE)
LARGEST = 1_000_000  # bytes; more is no script of settings


@dataclass(frozen=True, slots=True)
class Called:
    """A called script.

    Attributes:
        path: of it.
        text: of it.
        values: variables that it starts with: the caller's, those of the call, and its arguments by their places.
    """

    path: Path
    text: str
    values: dict[str, str]


def called(text: str, base: Path, values: dict[str, str]) -> Called | None:
    """Return the last script that a script calls and that lies beside it; None where there is none.

    Args:
        text: of the caller.
        base: its folder.
        values: of variables that it starts with.
    """
    if CALLS.search(text) is None:
        return None
    script = parse(text, values)
    for words in reversed(script.commands):
        at = next((i for i, word in enumerate(words) if CALLS.search(word) and not ASSIGNMENT.match(word)), None)
        if at is None or not all(_leads(word) for word in words[:at]):
            continue
        path = next((found for found in _places(words[at], base) if found.is_file()), None)
        if path is None or path.stat().st_size > LARGEST:
            continue
        inside = path.read_text(encoding="utf-8", errors="replace")
        if TAKES_IN_TURN.search(inside) is None:
            return Called(path, inside, {**script.values, **_given(words[:at]), **_by_place(words[at + 1 :])})
    return None


def _leads(word: str) -> bool:
    return word in CALLERS or word.startswith("-") or ASSIGNMENT.match(word) is not None


def _places(word: str, base: Path) -> list[Path]:
    """Return where a script may lie: as its path says, or by its name, as callers start from another folder."""
    name = Path(word.strip("\"'"))
    return [folder / part for folder in (base, base.parent) for part in (name, Path(name.name))]


def _given(words: list[str]) -> dict[str, str]:
    """Return the variables of a call alone."""
    found = [(match[1], word[match.end() :]) for word in words if (match := ASSIGNMENT.match(word)) is not None]
    return {name: value.strip("\"'") for name, value in found if not is_unknown(value)}


def _by_place(words: list[str]) -> dict[str, str]:
    end = next((i for i, word in enumerate(words) if re.match(r"\d?>|[|&;]", word)), len(words))
    arguments = [word.strip("\"'") for word in words[:end]]
    return {"#": str(len(arguments)), "@": " ".join(arguments)} | {str(i): word for i, word in enumerate(arguments, 1)}
