"""Predictions that are stored: ``python -m tests.golden.predictions`` stores them anew and prints what changed.

A refactor changes none of them; a change that means to move them shows by how much. They come from the command line and
its JSON, which stay where they are when modules move.
"""

from __future__ import annotations

import io
import json
import sys
import tempfile
from collections.abc import Callable, Iterable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import yaml

from predictor.__main__ import main
from tests.golden.configurations import READERS, Configuration, configurations, publish_fp32
from tests.golden.differences import first_differences, table
from tests.golden.documents import Sections, changed_hardware, comparison, prediction, rounded, search, trace
from tests.golden.interface import interface

INTERFACE = "documented Python interface"
STORED = Path(__file__).with_name("predictions.json")
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
    answer = run([placed(word) for word in words])
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


def stored() -> dict[str, Sections]:
    """Return the predictions of the file."""
    content: dict[str, Sections] = json.loads(STORED.read_text(encoding="utf-8"))
    return content


def as_text(results: dict[str, Sections]) -> str:
    """Return predictions as JSON with a line for each section of each configuration."""

    def line(content: object) -> str:
        return json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False)

    blocks = []
    for name, sections in results.items():
        lines = [f" {line(section)}:{line(content)}" for section, content in sections.items()]
        blocks.append(f"{line(name)}:{{\n" + ",\n".join(lines) + "\n}")
    return "{\n" + ",\n".join(blocks) + "\n}\n"


def _stored_before() -> dict[str, Sections]:
    """Return the predictions of the file, or none where it is absent or torn by a merge."""
    try:
        return stored()
    except (FileNotFoundError, ValueError) as error:
        print(f"{STORED.name} does not read ({error}); every configuration counts as new", file=sys.stderr)
        return {}


def store() -> int:
    """Store every prediction anew, print what changed, and return the exit code."""
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
    written = STORED.with_suffix(".new")
    written.write_text(as_text(after), encoding="utf-8")
    written.replace(STORED)
    return 0


if __name__ == "__main__":
    sys.exit(store())
