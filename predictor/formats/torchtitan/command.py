"""Read a command line of torchtitan: a job's file or a registry's function, with keys that the command changes.

Source: pytorch/torchtitan, run_train.sh, torchtitan/config/manager.py (0.1 to 0.3).
"""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

from predictor.core.base.errors import ConfigError
from predictor.core.schema.problems import Problems
from predictor.core.schema.read import Read
from predictor.formats.fields import Fields, settled_gpus
from predictor.formats.shell.script import Script, parse
from predictor.formats.shell.words import as_written, is_unknown
from predictor.formats.torchtitan.reader import from_job
from predictor.formats.torchtitan.recipes import job_of

STARTS = re.compile(r"torchtitan[./](?:train|experiments)\b|\brun_train\.sh\b|\btorchtitan/train\.py\b")
# A word of the command before what it changes: « CONFIG_FILE=… NGPU=8 ./run_train.sh … ».
BEFORE = re.compile(r"\b(CONFIG_FILE|MODULE|CONFIG|NGPU|NNODES)=[\"']?([^\s\"']+)")
LISTS = (
    "compile.components",
    "model.converters",
    "parallelism.pipeline_parallel_split_points",
)  # with commas, or words
SELECTING = ("module", "config", "job.config_file")


def read(path: Path, num_gpus: int | None = None) -> Read:
    """Read a command line.

    Args:
        path: the script.
        num_gpus: GPUs of the run, where the launcher does not say them.

    Raises:
        ConfigError: it starts no training, or what it names is not beside it.
    """
    text = path.read_text(encoding="utf-8", errors="replace")
    script = parse(text)
    words = next((words for words in script.commands if STARTS.search(" ".join(words))), None)
    if words is None:
        raise ConfigError(f"{path.name}: no command starts torchtitan.train or run_train.sh")
    problems, notes = Problems(), list[str]()
    named = dict(BEFORE.findall(text)) | {key: value for key, value in script.values.items() if not is_unknown(value)}
    given = _arguments(words)
    sections, where = _job(path, given, named, problems, notes)
    for key, value in given.items():
        section, dot, name = key.partition(".")
        if key in SELECTING or not dot:
            continue
        if is_unknown(str(value)):
            problems.lines.append(f"{path.name}: --{key} is {as_written(str(value))}; write its value")
            continue
        if not isinstance(sections.get(section), dict):
            sections[section] = {}
        _put(sections[section], name.split("."), value.split(",") if key in LISTS and isinstance(value, str) else value)
    gpus = settled_gpus(num_gpus, _gpus(given, named, script), path.name, notes)
    return from_job(Fields(sections, where, problems=problems.lines), problems, gpus, notes)


def _put(holder: dict[str, Any], steps: list[str], value: Any) -> None:
    """Set a key below sections of a section."""
    for step in steps[:-1]:
        inner = holder.get(step)
        if not isinstance(inner, dict):
            inner = holder[step] = {}
        holder = inner
    last = steps[-1]
    holder[last.removeprefix("no_") if value is False else last] = value


def _arguments(words: list[str]) -> dict[str, Any]:
    """Return the arguments of a command by name; several values make a list, none is true, « no_ » in front false."""
    found: dict[str, Any] = {}
    key = ""
    for word in words:
        if word.startswith("--"):
            name, has_value, value = word.removeprefix("--").partition("=")
            key = name.replace("-", "_")
            found[key] = _value(value) if has_value else not key.rpartition(".")[2].startswith("no_")
        elif re.match(r"-[A-Za-z]", word):
            key = ""  # « -m torchtitan.train » is the program
        elif key:
            old = found[key]
            found[key] = (
                _value(word) if isinstance(old, bool) else [*(old if isinstance(old, list) else [old]), _value(word)]
            )
    return found


def _value(word: str) -> Any:
    """Return a word as a number, a switch or a list where it is one."""
    text = word.strip("\"'")
    if text in ("True", "true", "False", "false"):
        return text.lower() == "true"
    if text in ("None", "null"):
        return None
    try:
        return json.loads(text)
    except ValueError:
        return text


def _job(
    path: Path, given: dict[str, Any], named: dict[str, str], problems: Problems, notes: list[str]
) -> tuple[dict[str, Any], str]:
    """Return the sections of the job that a command starts from, and its name for messages.

    Raises:
        ConfigError: its file is not beside the script.
    """
    module, function = given.get("module", named.get("MODULE")), given.get("config", named.get("CONFIG"))
    file = given.get("job.config_file", named.get("CONFIG_FILE"))
    if isinstance(file, str):
        found = _beside(path, file)
        if found is None:
            raise ConfigError(
                f"{path.name} takes {as_written(file)}, which is not beside it; put it there, or predict it"
            )
        try:
            return tomllib.loads(found.read_text(encoding="utf-8")), found.name
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{found} is not TOML: {error}") from None
    if not isinstance(module, str) or not isinstance(function, str):
        return {}, path.name
    registry = f"{module.replace('.', '/')}/config_registry.py"
    places = [f"torchtitan/models/{registry}", f"torchtitan/experiments/{registry}", registry]
    source = next((it for place in places if (it := _beside(path, place)) is not None), None)
    if source is None:
        raise ConfigError(
            f"{path.name} takes {function} of the module {module}, whose config_registry.py is not beside it; keep the "
            f"script in torchtitan's folder, or predict torchtitan/models/{module}/config_registry.py:{function}"
        )
    return job_of(source, function, problems, notes)


def _beside(path: Path, name: str) -> Path | None:
    """Return a file by the path that a script has for it, from its folder or one above it."""
    return next((file for folder in path.resolve().parents if (file := folder / name).is_file()), None)


def _gpus(given: dict[str, Any], named: dict[str, str], script: Script) -> int | None:
    """Return the GPUs of the run: those of a node and nodes of the launcher; run_train.sh has one node."""
    each = given.get("nproc_per_node", named.get("NGPU"))
    nodes = given.get("nnodes", named.get("NNODES", 1))
    try:
        return None if each is None else int(each) * int(nodes)
    except (TypeError, ValueError):
        return None
