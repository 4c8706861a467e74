"""The command line of Megatron-LM, from a shell script, a file of arguments or a YAML list or mapping of them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from predictor.base.errors import ConfigError, nearest
from predictor.configuration.readers.fields import Fields
from predictor.configuration.readers.known_keys import known_keys
from predictor.configuration.readers.shell_script import Script, is_unknown, parse, shown

KEYS = "megatron"
# Recognises a command line of Megatron-LM.
TELLING = re.compile(r"--(?:num-layers|tensor-model-parallel-size|micro-batch-size|num-attention-heads)\b")
LAUNCHER = ("nproc-per-node", "nnodes")
AS_IT_RUNS = "print the command that runs (echo in front of it) and read that"


class Options(Fields):
    """Arguments by name, dashes between words; True where no value follows."""

    def get(self, key: str) -> Any:
        """Return a value.

        Raises:
            ConfigError: the value is known only when the script runs.
        """
        value = Fields.get(self, key)
        if isinstance(value, str) and is_unknown(value):
            raise ConfigError(
                f"{self.where}: --{key} is {shown(value)}, which only a run of the script knows; write its value, or "
                f"{AS_IT_RUNS}"
            )
        return value

    def _shown(self, key: str) -> str:
        return shown(str(self.values.get(key))) if self.values.get(key) is not True else "given"

    def refuse(self) -> None:
        """Refuse arguments that change the cost in a way that is not modelled.

        Raises:
            ConfigError: there is one; the message has reason and remedy.
        """
        for name, reason in known_keys(KEYS).refused.items():
            key = name.replace("_", "-")
            if self.values.get(key) not in (None, False, "0", "None", "none"):
                raise self.error(key, reason)

    def rest(self) -> list[str]:
        """Return notes on the arguments that the reader did not use.

        Raises:
            ConfigError: an argument is unknown, and could affect the cost.
        """
        known = known_keys(KEYS)
        notes = []
        for key in self.unused():
            name = key.replace("-", "_")
            if name in known.noted:
                notes.append(known.noted[name])
            elif name not in known.refused and not known.is_irrelevant(name):
                usual = [used.replace("-", "_") for used in self.used] + list(known.irrelevant)
                raise ConfigError(
                    f"{self.where}: --{key} is not an argument of Megatron-LM that is known here."
                    f"{nearest(name, usual).replace('_', '-')} Remove it from the file if it changes no cost of a step"
                )
        return notes


def load(path: Path) -> tuple[Options, int | None, int | None]:
    """Return the arguments, the number of GPUs and the GPUs per node, as far as the file says them.

    Raises:
        ConfigError: the file holds no arguments, or some depend on a condition.
    """
    text = path.read_text(encoding="utf-8", errors="replace")
    listed = _from_yaml(text)
    script = parse(text) if listed is None else Script()
    words = _words(script) if listed is None else listed
    values = _values(words)
    if not any(TELLING.match(f"--{key}") for key in values):
        raise ConfigError(f"{path.name}: no arguments of Megatron-LM in it, such as --num-layers 32")
    _check_conditions(script, path.name)
    per_node, nodes = (_number(values.pop(key, None)) for key in LAUNCHER)
    world = _number(values.pop("world-size", None)) or _number(script.values.get("WORLD_SIZE"))
    if per_node and nodes:
        world = per_node * nodes
    return Options(values, path.name, "--"), world, per_node


def _from_yaml(text: str) -> list[str] | None:
    """Return the words of a YAML list or mapping of arguments, None where the text is something else."""
    try:
        content = yaml.load(text, Loader=yaml.CSafeLoader if hasattr(yaml, "CSafeLoader") else yaml.SafeLoader)
    except (yaml.YAMLError, ValueError):
        return None
    if isinstance(content, dict):
        # Megatron-LM's own test recipes keep them under MODEL_ARGS.
        return _from_mapping(content["MODEL_ARGS"] if isinstance(content.get("MODEL_ARGS"), dict) else content)
    if isinstance(content, list):
        return [word for item in content for word in str(item).split()]
    return None


def _from_mapping(content: dict[Any, Any]) -> list[str]:
    words = []
    for key, value in content.items():
        name = f"--{str(key).lstrip('-').replace('_', '-')}"
        if value is True:
            words.append(name)
        elif value is not False and value is not None:
            # A ${variable} here is filled in from outside.
            plain = re.sub(r"\$\{?(\w+)\}?", "\x00\\1\x00", str(value)).strip("[]")
            words += [name, *plain.replace(",", " ").split()] if isinstance(value, list) else [name, *plain.split()]
    return words


def _words(script: Script) -> list[str]:
    """Return the words of the training command with the launcher's sizes; of a plain list of arguments, all words."""
    if script.commands and script.commands[0][0].startswith("--"):
        return [word for words in script.commands for word in words]  # a value may stand on a line of its own
    training = [words for words in script.commands if TELLING.search(" ".join(words))]
    if training:
        words = training[-1]
        program = next((i for i, word in enumerate(words) if word.strip("\"'").endswith(".py")), 0)
        launcher = _values(words[:program])
        sizes = [word for key in LAUNCHER if key in launcher for word in (f"--{key}", str(launcher[key]))]
        return sizes + words[program + 1 :]
    return [word for value in script.values.values() if "--" in value for word in value.split()]


def _values(words: list[str]) -> dict[str, Any]:
    """Return arguments by name; a later one wins, as in argparse."""
    values: dict[str, Any] = {}
    name = None
    for word in words:
        bare = word.strip("\"'")
        if bare.startswith("--"):
            key, _, value = bare[2:].partition("=")
            name = shown(key).replace("_", "-")
            values[name] = value.strip("\"'") or True
        elif name is not None and bare:
            values[name] = bare if values[name] is True else f"{values[name]} {bare}"
    return values


def _number(value: object) -> int | None:
    return int(value) if isinstance(value, str) and value.isdigit() and int(value) > 0 else None


def _check_conditions(script: Script, where: str) -> None:
    known = known_keys(KEYS)
    for name in script.conditional.keys() & script.used:
        for key in _values(script.conditional[name]):
            if not known.is_irrelevant(key.replace("-", "_")):
                raise ConfigError(f"{where}: --{key} stands in a condition of the script ({name}); {AS_IT_RUNS}")
