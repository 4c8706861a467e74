"""Job scripts from a template: a shell script with placeholders in double braces, filled in with quoted values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import resources
from itertools import takewhile
from pathlib import Path, PurePath

from model_training_framework.slurm.errors import JobSubmissionError
from predictor.core.base.errors import nearest

DEFAULT = "default.sbatch"
PLACEHOLDER = re.compile(r"\{\{\s*([A-Za-z_]\w*)\s*\}\}")
NOT_A_NAME = re.compile(r"\{\{([^}\n]*)\}\}")
RUNS_THE_COMMAND = ("launch", "command")
SHELLS = ("sh", "bash", "dash", "ksh", "zsh")  # that understand claim.sh


def read_template(path: str | Path | None) -> tuple[str, str]:
    """Return what a template is called in messages, and its text.

    Args:
        path: of the template; the one that comes with the framework if absent.

    Raises:
        JobSubmissionError: it cannot be read, or does not start with ``#!`` as sbatch wants it.
    """
    if path is None:
        return DEFAULT, resources.files(__package__).joinpath(DEFAULT).read_text(encoding="utf-8")
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text in UTF-8"
        raise JobSubmissionError(f"slurm_template_path is {path}: {why}") from error
    if not text.startswith("#!"):
        raise JobSubmissionError(f"{path} starts with {text[:20]!r}; sbatch wants a shell there, such as #!/bin/bash")
    return str(path), text


def check_template(name: str, text: str, known: Mapping[str, object]) -> set[str]:
    """Return the placeholders of a template, after a check that all are known and that one runs the command.

    Raises:
        JobSubmissionError: it has not; the message names the line and the nearest placeholder.
    """
    used: set[str] = set()
    for number, line in enumerate(text.splitlines(), 1):
        for found in NOT_A_NAME.finditer(line):
            word = found[1].strip()
            if word not in known:
                hint = nearest(word, known) or f" Known are {', '.join(sorted(known))}."
                raise JobSubmissionError(f"{name}, line {number}: {{{{{word}}}}} is no placeholder.{hint}")
            used.add(word)
    if used.isdisjoint(RUNS_THE_COMMAND):
        raise JobSubmissionError(
            f"{name} never runs the experiment: {{{{launch}}}} is missing (or {{{{command}}}}, without srun)"
        )
    return used


def render(name: str, text: str, values: Mapping[str, str | None]) -> str:
    """Return the job script that a template makes.

    Args:
        name: of the template, for messages.
        text: of the template.
        values: of every placeholder, quoted for the shell already; None where the configuration says nothing.

    Raises:
        JobSubmissionError: a placeholder is unknown, or stands for a key that the configuration does not set.
    """
    used = check_template(name, text, values)

    def value_of(found: re.Match[str]) -> str:
        value = values[found[1]]
        if value is None:
            line = text.count("\n", 0, found.start()) + 1
            raise JobSubmissionError(
                f"{name}, line {line}: {{{{{found[1]}}}}} needs slurm.{found[1]}, which the configuration does not set"
            )
        return value

    script = PLACEHOLDER.sub(value_of, text)
    return script if "claim" in used else _claiming(script, values["claim"] or "")


def _claiming(script: str, claim: str) -> str:
    """Return a script whose first act is the claim; other shells and languages than claim.sh's run without."""
    if not any(PurePath(word).name in SHELLS for word in interpreter(script).split()):
        return script
    lines, before = script.splitlines(), len(_head(script))
    return "\n".join([*lines[:before], claim, *lines[before:], ""])


def _head(script: str) -> list[str]:
    """Return the lines of a script before its first command."""
    return list(takewhile(lambda line: not line.strip() or line.startswith("#"), script.splitlines()))


def header(script: str) -> list[str]:
    """Return the options of sbatch in a script, one ``#SBATCH`` line each, up to the first command."""
    return [line for line in _head(script) if line.startswith("#SBATCH")]


def interpreter(script: str) -> str:
    """Return what the first line of a script says that runs it."""
    return script.partition("\n")[0].removeprefix("#!").strip()
