"""Scripts that start a tool with a configuration file beside them.

The file is read as the tool's own, with what the command says differently (``--training.max_steps 10``,
``batch_size=8``) in its place. Source of launchers: torch/distributed/run.py; pytorch/torchtune, torchtune/_cli/run.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import yaml

from predictor.core.base.errors import ConfigError
from predictor.core.base.read_yaml import load_foreign
from predictor.core.schema.read import Read
from predictor.formats.fields import settled_gpus
from predictor.formats.format import Format
from predictor.formats.known_keys import speaks_of_cost
from predictor.formats.shell.script import parse
from predictor.formats.shell.words import as_written, is_unknown
from predictor.formats.source import JSON, TEXT, YAML, Source
from predictor.formats.table import format_of
from predictor.formats.trainer.layout import beside

COMMAND = Format("training command", "a tool with a file beside it", (), "commands", ("num_gpus",))
FILES = (".yaml", ".yml", ".json", ".toml")
LAUNCHERS = re.compile(r"^--(?:nproc[-_]per[-_]node|nnodes|num[-_]gpus|num[-_]nodes|num[-_]processes)$")
EACH = ("nproc_per_node", "num_gpus", "devices")
NODES = ("nnodes", "num_nodes")
NAMING = ("config", "config_file", "config_path", "c", "job.config_file", "cfg")


class Followed(NamedTuple):
    """A command and the configuration that it names.

    Attributes:
        words: of the command.
        at: where the file stands among them.
        file: that it names.
        known: the file's format.
    """

    words: list[str]
    at: int
    file: Path
    known: Format


def is_command(source: Source) -> bool:
    """Return whether a text starts a tool with a file of a known format beside it."""
    if source.syntax != TEXT or not any(ending in source.text for ending in FILES):
        return False
    return names_a_file(source.text, source.path.parent)


def names_a_file(text: str, base: Path) -> bool:
    """Return whether a script starts a tool with a file of a known format, which is beside it."""
    return next(_followed(text, base), None) is not None


def read(path: Path, num_gpus: int | None = None, text: str | None = None) -> Read:
    """Read the configuration that a script names, with what its last command says differently.

    Args:
        path: of the script.
        num_gpus: of the run, where it is known.
        text: of the script, where the path's file holds more than that.

    Raises:
        ConfigError: the file, or a change of it, asks for what is not modelled.
    """
    written = path.read_text(encoding="utf-8", errors="replace") if text is None else text
    *_, last = _followed(written, path.parent)
    notes = parse(written).of_loops(path.name)
    gpus = settled_gpus(num_gpus, _gpus(last), path.name, notes)
    changes = dict(_changes(last, path.name))
    source = Source(last.file, None, gpus)
    told = f"{path.name} names {last.file.name} ({last.known.name}), which is read"
    if not changes:
        held = last.known.read(source)
    elif source.syntax in (YAML, JSON):
        told += f" with its {', '.join(changes)}"
        with TemporaryDirectory() as folder:  # readers take a file
            changed = Path(folder) / last.file.name
            changed.write_text(yaml.safe_dump(_changed(source.content, changes), sort_keys=False), encoding="utf-8")
            held = last.known.read(Source(changed, None, gpus))
    else:
        raise ConfigError(f"{path.name} changes {', '.join(changes)} of {last.file.name}; write them into that file")
    return replace(held, notes=(told, *notes, *held.notes))


def _followed(text: str, base: Path) -> Iterator[Followed]:
    """Yield the commands of a script that name a training's configuration beside it."""
    for words in parse(text).commands:
        for at, word in enumerate(words):
            named = word.partition("=")[2] if word.startswith("--") and "=" in word else word
            if not named.endswith(FILES) or is_unknown(named) or named.startswith("-"):
                continue
            file = beside(named.strip("\"'"), base)
            known = None if file is None else format_of(Source(file))
            if file is not None and known is not None and known.module and known.rank > 1:
                yield Followed(words, at, file, known)
                break


def _gpus(followed: Followed) -> int | None:
    """Return the GPUs that the launcher, or the tool itself, is told; None where neither is."""
    given: dict[str, int] = {}
    for word, value in _pairs(followed.words):
        key = word.lstrip("-").replace("-", "_")
        if key in (*EACH, *NODES, "num_processes") and value.partition(":")[0].isdigit():
            given[key] = int(value.partition(":")[0])
    each = next((given[key] for key in EACH if key in given), None)
    nodes = next((given[key] for key in NODES if key in given), 1)
    return given.get("num_processes") if each is None else each * nodes


def _pairs(words: list[str]) -> Iterator[tuple[str, str]]:
    """Yield options with the word that each takes."""
    for at, word in enumerate(words):
        if word.startswith("--"):
            name, sign, value = word.partition("=")
            follows = words[at + 1] if at + 1 < len(words) else ""
            yield name, value if sign else follows


def _changes(followed: Followed, where: str) -> Iterator[tuple[str, Any]]:
    """Yield what a command says behind the file's name, by dotted key.

    Raises:
        ConfigError: what changes the cost comes from outside of the script.
    """
    words, at = followed.words, followed.at + 1
    while at < len(words):
        word = words[at]
        name, sign, value = word.lstrip("-").partition("=")
        at += 1
        if word.startswith("--") and not sign:
            takes = at < len(words) and not words[at].startswith("--")
            value, at = (words[at], at + 1) if takes else ("true", at)
        elif not sign:
            continue
        if LAUNCHERS.match(f"--{name}") or name in NAMING:
            continue
        if not is_unknown(value):
            yield name, _typed(value)
        elif speaks_of_cost(name, 1):
            raise ConfigError(
                f"{where}: {word.partition('=')[0]} is {as_written(value)}, which comes from outside; write its value"
            )


def _typed(value: str) -> Any:
    """Return a word of a command line as YAML has it, or as it is."""
    try:
        return load_foreign(value)
    except (yaml.YAMLError, ValueError):
        return value


def _changed(content: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return a file's content with changes by dotted keys; spelled with dashes or underscores, as the file has them."""
    whole = dict(content)
    for name, value in changes.items():
        *sections, key = name.split(".")
        holder = whole
        for section in sections:
            inner = holder.get(section)
            holder[section] = dict(inner) if isinstance(inner, dict) else {}
            holder = holder[section]
        holder[key if key in holder else key.replace("-", "_")] = value
    return whole
