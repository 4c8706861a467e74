"""Predictions that are stored: ``python -m tests.golden.predictions`` stores those that changed and prints by how much.

A file per configuration in ``stored/``, one number a line. A refactor changes none of them; a change that means to move
them shows by how much. They come from the command line and its JSON, which stay where they are when modules move.
"""

from __future__ import annotations

import io
import json
import re
import sys
import tempfile
from collections.abc import Callable, Iterable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import yaml

from predictor.__main__ import main
from tests.golden.configurations import READERS, Configuration, configurations, publish_fp32
from tests.golden.differences import changes, first_differences, table
from tests.golden.documents import Sections, changed_hardware, comparison, prediction, rounded, search, trace
from tests.golden.interface import interface

INTERFACE = "documented Python interface"
RECOMMENDER = "recommender"  # whose prediction is of the model alone in any case
MODEL_ONLY = "--model-only"  # what published runs took beyond it follows from a file that new rows change
STORED = Path(__file__).with_name("stored")
REDUCED: dict[str, Callable[[dict[str, Any]], Sections]] = {
    "predict": prediction,
    "compare": comparison,
    "whatif": changed_hardware,
    "search": search,
    "timeline": trace,
}


class GoldenError(Exception):
    """A golden configuration has no prediction any more; the message is the program's own."""


def run(arguments: list[str]) -> str:
    """Return what the program prints.

    Raises:
        GoldenError: it refuses.
    """
    stdout, stderr = io.StringIO(), io.StringIO()
    with redirect_stdout(stdout), redirect_stderr(stderr):
        code = main(arguments)
    if code != 0:
        raise GoldenError(stderr.getvalue().strip() or f"exit code {code}")
    return stdout.getvalue()


def predicted(configuration: Configuration, folder: Path, fp32: Path) -> Sections:
    """Return what the program predicts for one configuration.

    Args:
        configuration: of the table.
        folder: to write its file and its trace in.
        fp32: of the published system that says fp32.

    Raises:
        GoldenError: the program refuses it.
    """
    config, traced = folder / "config.yml", folder / "trace.json"
    places = {"CONFIG": config, "TRACE": traced, "READERS": READERS, "FP32": fp32}

    def placed(text: str) -> str:
        for placeholder, path in places.items():
            text = text.replace(placeholder, str(path))
        return text

    config.write_text(placed(yaml.safe_dump(configuration.content, allow_unicode=True)), encoding="utf-8")
    words = configuration.command.split()
    answer = run([*map(placed, words), *([] if configuration.name.startswith(RECOMMENDER) else [MODEL_ONLY])])
    if "TRACE" in words:
        answer = traced.read_text(encoding="utf-8")
    sections: Sections = rounded(REDUCED[words[0]](json.loads(answer)))
    return sections


def predictions(chosen: Iterable[Configuration]) -> tuple[dict[str, Sections], dict[str, str]]:
    """Return what is predicted for each configuration and by the Python interface, and why others are refused."""
    results: dict[str, Sections] = {}
    refused: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as name:
        fp32 = publish_fp32(Path(name))
        for configuration in chosen:
            try:
                results[configuration.name] = predicted(configuration, Path(name), fp32)
            except GoldenError as error:
                refused[configuration.name] = str(error)
    return results | {INTERFACE: rounded(interface())}, refused


def file_of(name: str) -> Path:
    """Return the file of a configuration.

    >>> file_of("ZeRO-3, H200").name
    'zero-3-h200.json'
    """
    return STORED / f"{re.sub('[^a-z0-9]+', '-', name.lower()).strip('-')}.json"


def as_text(name: str, sections: Sections) -> str:
    """Return a prediction as JSON with a number a line."""
    return json.dumps({name: sections}, ensure_ascii=False, indent=1, allow_nan=False) + "\n"


def stored() -> dict[str, Sections]:
    """Return the stored predictions.

    Raises:
        ValueError: a file is torn by a merge.
    """
    found: dict[str, Sections] = {}
    for path in sorted(STORED.glob("*.json")):
        found |= json.loads(path.read_text(encoding="utf-8"))
    return found


def _stored_before() -> dict[str, Sections]:
    """Return the stored predictions, or none where one is torn by a merge."""
    try:
        return stored()
    except ValueError as error:
        print(f"{STORED.name} does not read ({error}); every configuration counts as new", file=sys.stderr)
        return {}


def store() -> int:
    """Store the predictions that changed by more than rounding, print how, and return the exit code."""
    before = _stored_before()
    after, refused = predictions(configurations())
    for name, reason in refused.items():
        print(f"{name}: {reason}", file=sys.stderr)
    if refused:
        print(f"nothing stored: {len(refused)} configurations are refused", file=sys.stderr)
        return 1
    changed = table(before, after)
    summary = f"{len(after)} configurations, {len(changed)} of them changed, new or gone"
    print("\n".join([*changed, *first_differences(before, after), summary]))
    STORED.mkdir(exist_ok=True)
    for path in STORED.glob("*.json"):
        if path not in set(map(file_of, after)):
            path.unlink()
    for name, sections in after.items():
        if name not in before or changes(before[name], sections):
            file_of(name).write_text(as_text(name, sections), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(store())
