"""Read a shell script that starts a Trainer: its launcher's sizes, and the arguments or the file that it names.

Source of names: huggingface/accelerate, src/accelerate/commands/launch.py; deepspeed/launcher/runner.py;
torch/distributed/run.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from predictor.core.base.errors import ConfigError
from predictor.core.base.read_yaml import load_foreign, read_mapping
from predictor.core.schema.problems import Problems
from predictor.core.schema.read import Read
from predictor.formats.fields import settled_gpus
from predictor.formats.known_keys import known_keys
from predictor.formats.megatron.command import REDIRECTIONS, with_sources
from predictor.formats.shell.script import parse
from predictor.formats.shell.starts import CALLED, of_other_script, of_own_program
from predictor.formats.shell.words import UNKNOWN, as_written, is_unknown
from predictor.formats.trainer import axolotl, llama_factory, reader, swift
from predictor.formats.trainer.layout import Launch, beside
from predictor.formats.trainer.preference import named as objective_named

TRAINER_COMMAND = re.compile(
    r"--(?:per_device_train_batch_size|per-device-train-batch-size)\b|\bllamafactory-cli(?:\s+train\b|\})|"
    r"\baxolotl(?:\.cli\.|\s+)train\b|(?:^|\s)trl\s+sft\b|(?:^|[\s/])swift\s+(?:sft|pt|rlhf)\b|"
    r"(?:^|\s)megatron\s+(?:sft|pt)\b|\baccelerate\s+launch\b(?:[^\n]|\\\n)*\.ya?ml",
    re.MULTILINE,
)
NAMING = re.compile(r"--model_name_or_path\b")  # of a Trainer, unless other arguments tell another tool
STARTS = ("--per_device_train_batch_size", "--per-device-train-batch-size")
COMMANDS = ("llamafactory-cli", "axolotl", "trl", "llmtuner", "lmf", "swift", "megatron", "autoalign-cli")
SUBCOMMANDS = ("train", "sft", "pt", "launch", "rlhf", "dpo", "grpo", "kto", "reward", "rm")
STAND_IN = "\u2400"  # of the mark of an unknown expansion, which YAML refuses
ONLY_UNKNOWN = re.compile(
    f"^\\s*{STAND_IN}[^{STAND_IN}\n]*{STAND_IN}\\s*$", re.MULTILINE
)  # lines of keys that it takes in
OF_TRAININGS = {"model_name_or_path", "base_model"}
CONFIGS = (".yaml", ".yml", ".json")
VISIBLE = re.compile(r"\bCUDA_VISIBLE_DEVICES=[\"']?([0-9]+(?:,[0-9]+)*)")
SWIFT_SIZES = re.compile(r"\b(NPROC_PER_NODE|NNODES)=[\"']?\$?\{?(\w+)")
INCLUDED = re.compile(r"[^:@]+:([0-9]+(?:,[0-9]+)*)")
# Words of accelerate's launcher by the key of its configuration.
ACCELERATE = {
    "num_processes": "num_processes",
    "num_machines": "num_machines",
    "mixed_precision": "mixed_precision",
    "deepspeed_config_file": "deepspeed_config.deepspeed_config_file",
    "zero_stage": "deepspeed_config.zero_stage",
    "offload_optimizer_device": "deepspeed_config.offload_optimizer_device",
    "offload_param_device": "deepspeed_config.offload_param_device",
}
LAUNCHERS = ("nproc_per_node", "nnodes", "num_gpus", "num_nodes", "include", "config_file", *ACCELERATE)
# Programs that train no language model on its samples alone, by a part of their names.
OTHER_TASKS = re.compile(
    r"(?<![a-z])(?:(?:dpo|ppo|grpo|kto|orpo|cpo|simpo|rloo)[a-z]*|(?:bco|nash|xpo|gkd|rlhf|reward|rm|prm|ranking|glue|"
    r"squad|qa|ner|swag|xnli|summarization|translation|seq2seq|classification|speech|audio|wav2vec2?|image|clip|flax|"
    r"distill\w*|embedding|retriev\w*|reranker)(?![a-z]))"
)


@dataclass(slots=True)
class Command:
    """A training command.

    Attributes:
        launcher: words in front of the program.
        program: a file, a module or a tool with its subcommand.
        words: arguments behind it.
    """

    launcher: list[str]
    program: str
    words: list[str]
    values: dict[str, Any] = field(default_factory=dict)


def read(path: Path, num_gpus: int | None = None, text: str | None = None) -> Read:
    """Read the training command of a script.

    Args:
        path: of the script.
        num_gpus: of the run, where it is known.
        text: of the script, where the path's file holds more than that.

    Raises:
        ConfigError: it starts no training of a language model, several that differ, or something is not modelled.
    """
    text = with_sources(text or path.read_text(encoding="utf-8", errors="replace"), path.parent)
    script = parse(text)
    found = [_command(words) for words in script.commands]
    commands = [command for command in found if command is not None]
    if not commands:
        other = of_other_script(path.name, text)
        if other is not None and CALLED.search(text) is not None:
            raise other
        if (own := of_own_program(path.name, text.replace("\\\n", " "))) is not None:
            raise own
        raise ConfigError(
            f"{path.name}: it starts no Trainer of a language model that is told by its arguments, such as "
            "--per_device_train_batch_size; read the script or the file that has them"
        )
    problems = Problems()
    _check_same(commands, path.name, problems)
    command = commands[-1]
    task = OTHER_TASKS.search(Path(command.program).name.lower())
    if task is not None and _objective(command) is None:
        raise ConfigError(
            f"{path.name}: it starts {command.program}; {task[0]} is not modelled, supervised fine-tuning and "
            "continued pre-training are: read the command of such a run"
        )
    launch = _launch(command, text, script.values, path, num_gpus)
    launch.notes += script.of_loops(path.name)
    return _read(command, path.name, launch, script.documents, problems)


def _read(command: Command, where: str, launch: Launch, documents: list[str], problems: Problems) -> Read:
    """Return what a command's arguments say, with those of the file that it names in front."""
    content = dict(command.values)
    named = next((word for word in command.words[:1] if word.endswith(CONFIGS) or is_unknown(word)), None)
    named = named or content.pop("config", None)
    if isinstance(named, str):
        content = _config(named, where, launch, documents) | content
        prefix = ""
    else:
        prefix = "--"
    program = command.program
    if program.startswith("megatron"):
        from predictor.formats.trainer import megatron_run  # costs a start that has none

        return megatron_run.from_mapping(content, where, launch, problems, prefix)
    if program.startswith("swift"):
        return swift.from_mapping(content, where, launch, problems, prefix, _objective(command))
    if program.startswith("axolotl"):
        return axolotl.from_mapping(content, where, launch, problems)
    if "llamafactory" in program or "llmtuner" in program or "finetuning_type" in content:
        return llama_factory.from_mapping(content, where, launch, problems, prefix)
    objective = _objective(command)
    is_trl = program.startswith("trl") or bool(re.search(r"sft", Path(program).name)) or objective is not None
    return reader.from_arguments(content, where, launch, problems, prefix, is_trl, objective)


def _objective(command: Command) -> str | None:
    """Return the objective of TRL's and ms-swift's subcommands, and of programs named as TRL's examples are.

    >>> [_objective(Command([], name, [])) for name in ("trl dpo", "examples/dpo.py", "src.run_dpo", "dpo_online.py")]
    ['dpo', 'dpo', 'dpo', None]
    """
    name = Path(command.program).name.removesuffix(".py").rpartition(".")[2]
    if name == "swift rlhf":
        return objective_named(str(command.values.get("rlhf_type", "dpo")))
    found = re.fullmatch(r"(?:trl |run_|train_)?([a-z_]+)", name)
    return None if found is None else objective_named(found[1])


def _config(named: str, where: str, launch: Launch, documents: list[str]) -> dict[str, Any]:
    """Return the arguments of the file that a command names, which the script itself may write.

    Raises:
        ConfigError: it is neither beside the script nor in it.
    """
    file = None if is_unknown(named) else beside(named, launch.base)
    if file is not None:
        launch.base = file.parent
        launch.notes.append(f"{where} names {file.name}, which is read")
        return read_mapping(file)
    written = [content for text in documents if (content := _document(text)) is not None]
    if len(written) == 1:
        return written[0]
    raise ConfigError(
        f"{where}: the arguments are in {as_written(named)}, which is not beside this script; read that file, with "
        "--gpus N"
    )


def _document(text: str) -> dict[str, Any] | None:
    """Return the arguments of a training in a text that a script writes; None where it is something else."""
    try:
        content = load_foreign(ONLY_UNKNOWN.sub("", text.replace(UNKNOWN, STAND_IN)))
    except (yaml.YAMLError, ValueError):
        return None
    if not isinstance(content, dict) or not OF_TRAININGS & content.keys():
        return None
    return {
        str(key): value.replace(STAND_IN, UNKNOWN) if isinstance(value, str) else value
        for key, value in content.items()
    }


def _command(words: list[str]) -> Command | None:
    """Return the training command of words; None where they start none."""
    words = words[: next((i for i, word in enumerate(words) if word in REDIRECTIONS), len(words))]
    words = [word.strip("\"'") for word in words]
    at = next((i for i, word in enumerate(words) if _is_program(words, i)), None)
    if at is None:
        return None
    program, behind = words[at], words[at + 1 :]
    if Path(program).name in COMMANDS:
        if not behind or behind[0] not in SUBCOMMANDS:
            return None
        program, behind = f"{Path(program).name} {behind[0]}", behind[1:]
    starts = any(word.partition("=")[0] in STARTS for word in behind)
    is_named = any(word.endswith(CONFIGS) for word in behind[:1]) or "--config" in behind
    is_tool = program.partition(" ")[0].partition(".")[0] in COMMANDS
    if not (starts or is_tool or is_named):
        return None
    positional = behind[:1] if behind and not behind[0].startswith("--") else []
    return Command(words[:at], program, positional, _values(behind[len(positional) :]))


def _is_program(words: list[str], at: int) -> bool:
    word = words[at]
    if at and words[at - 1] in ("-m", "--module"):
        return not word.startswith("torch.distributed") and not word.startswith(("accelerate", "deepspeed"))
    return word.endswith(".py") or Path(word).name in COMMANDS


def _values(words: list[str]) -> dict[str, Any]:
    """Return arguments by name; KEY=VALUE without dashes is one too (llamafactory-cli, Hydra's way)."""
    values: dict[str, Any] = {}
    name = None
    for word in words:
        if word.startswith("--"):
            key, sign, value = word[2:].partition("=")
            name = key.replace("-", "_")
            values[name] = value if sign else True
        elif re.fullmatch(r"-[A-Za-z]", word):
            name = word[1:]
            values[name] = True
        elif name is None and re.match(r"[a-z]\w*=", word):
            key, _, value = word.partition("=")
            values[key] = value
        elif name is not None:
            values[name] = word if values[name] is True else f"{values[name]} {word}"
    return {key: _typed(value) for key, value in values.items()}


def _typed(value: Any) -> Any:
    """Return a number, a switch or an object that a word of a command line stands for; other words as they are."""
    if not isinstance(value, str) or UNKNOWN in value:
        return value
    if value in ("True", "true", "False", "false"):
        return value.lower() == "true"
    if re.fullmatch(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", value) or value.startswith(("{", "[")):
        try:
            return load_foreign(value)
        except (yaml.YAMLError, ValueError):
            return value
    return value


def _check_same(commands: list[Command], where: str, problems: Problems) -> None:
    """Record trainings of one program whose arguments differ in what costs."""
    last = commands[-1]
    known = known_keys("trainer")
    same = [command for command in commands if command.program == last.program and command.words == last.words]
    keys = sorted({key for command in same for key in command.values if not known.is_irrelevant(key)})
    differing = [f"--{key}" for key in keys if len({str(command.values.get(key)) for command in same}) > 1]
    if differing:
        problems.lines.append(
            f"{where}: it starts {len(same)} trainings that differ in {', '.join(differing[:3])}; leave one of them in "
            "the file"
        )


def _environment(text: str, values: Mapping[str, str]) -> dict[str, Any]:
    """Return what variables in front of ms-swift's command say of its launcher, which it starts itself."""
    return {name.lower(): _typed(values.get(value, value)) for name, value in SWIFT_SIZES.findall(text)}


def _launch(command: Command, text: str, values: Mapping[str, str], path: Path, num_gpus: int | None) -> Launch:
    """Return GPUs, nodes and accelerate's keys that a launcher says."""
    given = _values(command.launcher)
    found = {key: given[key] for key in LAUNCHERS if key in given}
    own: dict[str, Any] = {}
    missing = ""
    if isinstance(named := found.get("config_file"), str):
        file = None if is_unknown(named) else beside(named, path.parent)
        own, missing = ({}, as_written(named)) if file is None else (read_mapping(file), "")
    for key, ours in ACCELERATE.items():
        if key in found:
            part, _, name = ours.rpartition(".")
            holder = own.setdefault(part, {}) if part else own
            holder[name] = found[key]
    if "deepspeed_config" in own and (given.get("use_deepspeed") or "distributed_type" not in own):
        own["distributed_type"] = "DEEPSPEED"
    if given.get("use_fsdp"):
        own["distributed_type"] = "FSDP"
    if section := {key: value for key, value in given.items() if key.startswith("fsdp_")}:
        own["fsdp_config"] = {**own.get("fsdp_config", {}), **section}
    nodes = _number(found.get("num_nodes")) or _number(str(found.get("nnodes", "")).partition(":")[0])
    nodes = nodes or _number(own.get("num_machines")) or 1
    if command.program.startswith(("swift", "megatron")) and "nproc_per_node" not in found:
        found |= _environment(text, values)
        nodes = _number(found.get("nnodes")) or nodes
    notes: list[str] = []
    gpus = settled_gpus(num_gpus, _gpus(command, found, own, nodes, text), path.name, notes)
    return Launch(path.parent, gpus, nodes, own, path.name, missing, notes)


def _gpus(command: Command, found: Mapping[str, Any], own: Mapping[str, Any], nodes: int, text: str) -> int | None:
    """Return the GPUs of a run; None where its launcher takes all that a node has."""
    each = _number(found.get("num_gpus")) or _number(found.get("nproc_per_node"))
    if each is not None:
        return each * nodes if not any(is_unknown(str(found.get(key, ""))) for key in ("nnodes", "num_nodes")) else None
    if (included := INCLUDED.fullmatch(str(found.get("include", "")))) is not None:
        return len(included[1].split(",")) * nodes
    if (processes := _number(own.get("num_processes"))) is not None:
        return processes
    visible = {tuple(devices.split(",")) for devices in VISIBLE.findall(text)}
    launches = any(word in " ".join(command.launcher) for word in ("torchrun", "deepspeed", "accelerate", "torch."))
    if len(visible) == 1 and nodes == 1:
        devices = len(visible.pop())
        is_tool = command.program.startswith(("llamafactory-cli", "axolotl"))
        return devices if devices == 1 or launches or is_tool else None  # else layers may be spread over them
    return None


def _number(value: object) -> int | None:
    if isinstance(value, str) and value.isdigit():
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
