"""The command line of Megatron-LM, from a shell script, a file of arguments or a YAML list or mapping of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from predictor.core.base.errors import ConfigError
from predictor.core.base.yaml_depth import load_yaml
from predictor.formats.known_keys import known_keys, speaks_of_cost
from predictor.formats.megatron.options import AS_IT_RUNS, KEYS, Options
from predictor.formats.shell.called import called
from predictor.formats.shell.script import Script, parse, shown
from predictor.formats.shell.words import UNKNOWN, is_unknown

# Recognises a command line of Megatron-LM.
ARGUMENT = re.compile(
    r"--(?:num[-_]layers|tensor[-_]model[-_]parallel[-_]size|micro-batch-size|num[-_]attention[-_]heads)\b"
)
SOURCED = re.compile(r"^[ \t]*(?:source|\.)[ \t]+(.+?)[ \t]*(?:#.*)?$", re.MULTILINE)
REDIRECTIONS = ("|", "|&", "2>&1", "&>", ">&", ">", ">>", "2>", "&>>", "1>", "&")
# Variables of whole arguments, which are none where a script does not set them.
OF_ARGUMENTS = re.compile(r"\{?\w*(?:ARGS|ARGUMENTS|OPTS|OPTIONS|FLAGS|PARAMS|EXTRA)\w*(?:\[[@*]\])?\}?", re.IGNORECASE)
MOST_CALLS = 3  # of a script by another, one inside the other
LARGEST_SOURCE = 1_000_000  # bytes; more is no script of settings
OWN_ARGUMENT = re.compile(rf"{UNKNOWN}\{{?[0-9]+\}}?{UNKNOWN}")  # of a script
LAUNCHER = {"nproc-per-node": "per_node", "num-gpus": "per_node", "nnodes": "nodes", "num-nodes": "nodes"}
SLURM = re.compile(r"^#SBATCH\s+(--[\w-]+|-N)[ =]+(\S+)", re.MULTILINE)
# Variables of paths, names and addresses, whose defaults say nothing about a step.
OF_NO_STEP = re.compile(
    r"PATH|DIR|PORT|ADDR|RANK|SAVE|LOAD|LOG|DATA|TOKEN|VOCAB|MERGE|SEED|NAME|WANDB|CKPT|CHECKPOINT|CACHE|FILE|ITER|"
    r"LR|JOB|HOST|NCCL|CUDA|TIME|ROOT|IMAGE|PARTITION|ACCOUNT|PROFIL|EXP"
)


@dataclass(slots=True)
class Command:
    """A training command.

    Attributes:
        options: its arguments.
        program: the Python file that it runs; empty where the file holds arguments alone.
        world_size: GPUs, None where the file does not say.
        gpus_per_node: the same.
        documents: texts that the script writes to files.
        blocking_launches: the host waits for every kernel (CUDA_LAUNCH_BLOCKING).
        notes: what was guessed.
    """

    options: Options
    program: str = ""
    world_size: int | None = None
    gpus_per_node: int | None = None
    documents: list[str] = field(default_factory=list)
    blocking_launches: bool = False
    notes: list[str] = field(default_factory=list)


def load(path: Path, problems: list[str]) -> Command:
    """Return the training command of a file.

    Args:
        path: the file.
        problems: where broken rules are recorded.

    Raises:
        ConfigError: the file holds no arguments.
    """
    text = path.read_text(encoding="utf-8", errors="replace")
    listed = _from_yaml(text)
    script = Script()
    if listed is None:
        whole, values_before, called_script = with_called(text, path.parent)
        script = parse(_with_slurm(whole), values_before)
    program, words = _words(script, path.name, problems) if listed is None else ("", listed)
    values = _values(words)
    if not any(ARGUMENT.match(f"--{key}") for key in values):
        raise ConfigError(f"{path.name}: no arguments of Megatron-LM in it, such as --num-layers 32")
    _check_conditions(script, path.name, problems)
    given = set(values)
    sizes = {name: _number(values.pop(key, None)) for key, name in LAUNCHER.items() if key in values}
    per_node, nodes = sizes.get("per_node"), sizes.get("nodes")
    world = _number(values.pop("world-size", None)) or _number(script.values.get("WORLD_SIZE"))
    if per_node and (nodes or (world is None and "nnodes" not in given)):  # torchrun starts one node unless told
        world = per_node * (nodes or 1)
    variables = {value: name for name, value in script.values.items() if is_unknown(value)}
    options = Options(values, path.name, "--", problems=problems, variables=variables)
    blocks = script.values.get("CUDA_LAUNCH_BLOCKING") == "1"
    notes = _guesses(script, path.name)
    if listed is None and called_script is not None:
        notes.insert(0, f"{path.name}: read is {called_script.name}, which it calls with its arguments")
    return Command(options, program, world, per_node, script.documents, blocks, notes)


def of_arguments(arguments: Mapping[str, Any], program: str, problems: list[str]) -> Command:
    """Return the training command that arguments by name stand for.

    Args:
        arguments: as in Megatron-LM's own test recipes.
        program: path of the program; empty where it is not known.
        problems: where broken rules are recorded.
    """
    values = _values(_from_mapping(dict(arguments)))
    return Command(Options(values, "arguments", "--", problems=problems), Path(program).name)


def with_called(text: str, base: Path) -> tuple[str, dict[str, str], Path | None]:
    """Return a script that holds arguments, the variables that it starts with, and its path where another calls it.

    Args:
        text: of a script, which may hold none and call the one that does.
        base: its folder.
    """
    whole, values, path = with_sources(text, base), dict[str, str](), None
    for _ in range(MOST_CALLS):
        found = None if ARGUMENT.search(whole) else called(_with_slurm(whole), base, values)
        if found is None:
            break
        path, base, values = found.path, found.path.parent, found.values
        whole = with_sources(found.text, base)
    return whole, values, path


def with_sources(text: str, base: Path, depth: int = 3) -> str:
    """Return a script with the scripts that it sources (« source », « . ») in their place, where they are beside it."""

    def inside(line: re.Match[str]) -> str:
        # Of a path such as $(dirname $0)/models/x.sh or "${HERE}/x.sh" what follows the last expansion.
        written = re.split(r"[`)}]|\$\w+", line[1].replace('"', "").replace("'", ""))[-1].split() or [""]
        name = written[0].lstrip("/") if written[0] != line[1] else written[0]
        for folder in (base, base.parent):
            file = folder / name
            if name and file.is_file() and file.stat().st_size < LARGEST_SOURCE:
                return with_sources(file.read_text(encoding="utf-8", errors="replace"), file.parent, depth - 1)
        return line[0]

    return SOURCED.sub(inside, text) if depth else text


def _with_slurm(text: str) -> str:
    """Return a script with the variables that Slurm sets from its #SBATCH lines."""
    asked = {key.lstrip("-"): value for key, value in SLURM.findall(text)}
    nodes = asked.get("nodes") or asked.get("N")
    tasks, gpus = asked.get("ntasks-per-node"), asked.get("gpus-per-node")
    known = {"SLURM_NNODES": nodes, "SLURM_JOB_NUM_NODES": nodes, "SLURM_GPUS_PER_NODE": gpus}
    known["SLURM_NTASKS_PER_NODE"] = tasks
    if nodes and tasks and nodes.isdigit() and tasks.isdigit():
        known["SLURM_NTASKS"] = known["SLURM_NPROCS"] = str(int(nodes) * int(tasks))
    return "".join(f"{name}={value}\n" for name, value in known.items() if value and value.isdigit()) + text


def _guesses(script: Script, where: str) -> list[str]:
    """Return a note on variables that the script takes from outside and that were read with their defaults."""
    guessed = {
        name: value
        for name, value in script.guesses.items()
        if not OF_NO_STEP.search(name.upper()) and "/" not in value
    }
    shown_values = ", ".join(f"{name} {shown(value) or 'empty'}" for name, value in guessed.items())
    notes = [f"{where}: variables that the script does not set have their defaults: {shown_values}"] if guessed else []
    return [*notes, *script.of_loops(where)]


def _from_yaml(text: str) -> list[str] | None:
    """Return the words of a YAML list or mapping of arguments, None where the text is something else."""
    try:
        content = load_yaml(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
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
            written = " ".join(map(str, value)) if isinstance(value, list) else str(value)
            words += [name, *re.sub(r"\$\{?(\w+)\}?", "\x00\\1\x00", written).split()]
    return words


def _words(script: Script, where: str, problems: list[str]) -> tuple[str, list[str]]:
    """Return the program and the words of the training command with the launcher's sizes.

    Of a plain list of arguments these are all words, without a program. Several trainings that differ are a problem.
    """
    if script.commands and script.commands[0] and script.commands[0][0].startswith("--"):
        return "", [word for words in script.commands for word in words]  # a value may stand on a line of its own
    inside = (words for text in script.documents for words in parse(text, script.values).commands)
    commands = [*script.commands, *inside]
    training = [words for words in commands if ARGUMENT.search(" ".join(words))]
    if training:
        split = [_split(words, script) for words in training]
        launcher, program, arguments = split[-1]
        same = [_values(others) for _, name, others in split if name == program and program]
        known = known_keys(KEYS)
        keys = sorted({key for values in same for key in values if not known.is_irrelevant(key.replace("-", "_"))})
        differing = [f"--{key}" for key in keys if len({str(values.get(key)) for values in same}) > 1]
        if differing:
            problems.append(
                f"{where}: it starts {len(same)} trainings that differ in {', '.join(differing[:3])}; leave one of "
                "them in the file"
            )
        given = _values(launcher)
        sizes = [word for key in LAUNCHER if key in given for word in (f"--{key}", str(given[key]))]
        return program, sizes + arguments
    return "", [word for value in script.values.values() if "--" in value for word in value.split()]


def _split(words: list[str], script: Script) -> tuple[list[str], str, list[str]]:
    """Return the launcher's words, the program (empty where there is none) and its arguments of a command."""
    words = words[: next((i for i, word in enumerate(words) if word in REDIRECTIONS), len(words))]
    words = [word for word in words if not _is_left_out(word, script)]
    program = next((i for i, word in enumerate(words) if word.strip("\"'").endswith(".py")), 0)
    return words[:program], Path(words[program].strip("\"'")).name if program else "", words[program + 1 :]


def _is_left_out(word: str, script: Script) -> bool:
    """Return whether a word is a variable of whole arguments that the script does not set, after recording it.

    What a condition may put into one is checked by itself.
    """
    name = shown(word).strip("{}").partition("[")[0]
    if not (word.startswith(UNKNOWN) and word.endswith(UNKNOWN) and word.count(UNKNOWN) == 2):
        return False
    if name in script.conditional:
        return all(first.startswith("--") for first in script.conditional[name][:1])
    if not OF_ARGUMENTS.fullmatch(name):
        return False
    script.guesses[name] = ""
    return True


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


def _check_conditions(script: Script, where: str, problems: list[str]) -> None:
    """Record arguments that stand in a condition which only a run of the script settles.

    Raises:
        ConfigError: the script's own arguments settle it: another script's call says them.
    """
    known = known_keys(KEYS)
    matters = {*known.read, *known.refused}
    found: list[str] = []
    for name in sorted(script.conditional.keys() & script.used):
        found += [
            f"{where}: --{key} stands in a condition of the script ({name}); {AS_IT_RUNS}"
            for key, value in _values(script.conditional[name]).items()
            if not known.is_irrelevant(spelled := key.replace("-", "_"))
            and (spelled in matters or speaks_of_cost(spelled, value))
        ]
    own = sum(OWN_ARGUMENT.fullmatch(value) is not None for value in script.values.values())
    if found and own > 1:
        raise ConfigError(
            f"{where}: its {own} arguments decide {len(found)} of its options; write the line that calls it "
            f"(bash {where} …) into a file beside it, and read that file"
        )
    problems += found
