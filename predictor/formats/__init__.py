"""Read configurations of other tools and convert them to the full form."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from predictor.core.base.errors import ConfigError
from predictor.core.base.yaml_depth import load_yaml
from predictor.core.schema.input_kind import (
    HUGECTR,
    TRAINERS,
    is_experiment,
    is_hugectr,
    is_llm_trainer,
    is_model_id,
    part_of_file,
)
from predictor.core.schema.problems import Problems
from predictor.core.schema.read import Read
from predictor.formats import accelerate, experiment, llm_trainer, nemo
from predictor.formats.deepspeed import reader as deepspeed
from predictor.formats.hugging_face import reader as hugging_face
from predictor.formats.llm_foundry import reader as llm_foundry
from predictor.formats.megatron import reader as megatron
from predictor.formats.megatron.command import TELLING, with_sources
from predictor.formats.megatron_bridge import reader as megatron_bridge
from predictor.formats.other_tools import of_other_script, of_other_tool, tool_of
from predictor.formats.python_source.recipes import with_function
from predictor.formats.torchtitan import reader as torchtitan
from predictor.formats.torchtitan import recipes as torchtitan_python

__all__ = ["FORMATS", "Read", "detect", "of_configuration", "of_trainer", "read_all", "read_any", "read_named"]

FORMATS = (
    hugging_face.FORMAT,
    megatron.FORMAT,
    megatron_bridge.FORMAT,
    deepspeed.FORMAT,
    torchtitan.FORMAT,
    torchtitan_python.FORMAT,
    accelerate.FORMAT,
    nemo.FORMAT,
    llm_foundry.FORMAT,
    *TRAINERS,
    HUGECTR,
)
IN_PYTHON = (megatron_bridge.FORMAT, torchtitan_python.FORMAT)
# Top-level keys, of which every such file has at least one.
DEEPSPEED_KEYS = frozenset({*deepspeed.BATCH, "zero_optimization", "fp16", "bf16", "zero_allow_untested_optimizer"})
TORCHTITAN_SECTIONS = frozenset({"job", "model", "training", "parallelism", "activation_checkpoint"})
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
LARGEST_BYTES = 10_000_000  # more is no hand-written configuration, perhaps a checkpoint's index


def _text(path: Path) -> str:
    """Return the text of a file.

    Raises:
        FileNotFoundError: there is none.
        ConfigError: it is a folder, too large or no text.
    """
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist")
    if path.is_dir():
        raise ConfigError(f"{path} is a folder; expected a file such as its config.json")
    if path.stat().st_size > LARGEST_BYTES:
        raise ConfigError(
            f"{path} has {path.stat().st_size:,} bytes; expected a configuration, of at most {LARGEST_BYTES:,}"
        )
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is no text; expected one of {', '.join(FORMATS)}") from None


def _of_json(content: dict[str, Any]) -> str | None:
    """Return the format of a JSON object; None where no format has its keys."""
    if is_hugectr(content):
        return HUGECTR
    if is_experiment(content):
        return experiment.FORMAT
    if is_llm_trainer(content):
        return llm_trainer.FORMAT
    if "model_type" in content or "architectures" in content:
        return hugging_face.FORMAT
    return deepspeed.FORMAT if DEEPSPEED_KEYS & content.keys() else None


def _of_python(text: str) -> str | None:
    """Return the format of Python code, told by what it imports."""
    if megatron_bridge.TELLING.search(text):
        return megatron_bridge.FORMAT
    return torchtitan_python.FORMAT if torchtitan_python.TELLING.search(text) else None


def _mapping_in(text: str) -> dict[str, Any] | None:
    """Return a YAML mapping; None for any other text."""
    try:
        content = load_yaml(text, LOADER)
    except (yaml.YAMLError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def _of_yaml(content: dict[str, Any] | None, text: str) -> str | None:
    """Return the format of a YAML mapping, told by its sections; None of a tool that is not read."""
    if content is None:
        return None
    if is_experiment(content):
        return experiment.FORMAT
    inside = llm_foundry.inside(content)
    model = inside.get("model")
    named = isinstance(model, dict) and model.get("name") in llm_foundry.MODELS
    told = {
        llm_foundry.FORMAT: named and any(key in inside for key in llm_foundry.BATCH),
        nemo.FORMAT: isinstance(model, dict) and "trainer" in content and nemo.TELLING in model,
        accelerate.FORMAT: "distributed_type" in content and len(accelerate.TELLING & content.keys()) > 1,
        llm_trainer.FORMAT: is_llm_trainer(content),
        # Other tools have sections of such names too.
        megatron_bridge.FORMAT: len(megatron_bridge.SECTIONS & content.keys()) > 1 and tool_of(content, text) is None,
    }
    return next((name for name, is_told in told.items() if is_told), None)


def detect(path: Path) -> str:
    """Return the format of a file, told by its content; a function of a Python file may be named behind a colon.

    Raises:
        FileNotFoundError: there is no such file.
        ConfigError: the format is not a known one; the message names the tool that the file is of, or lists those.
    """
    path, _ = with_function(path)
    text = _text(path)
    if path.suffix == ".py":
        told = _of_python(text)
        if told is None:
            raise ConfigError(f"{path}: unknown config format; known in Python: {', '.join(IN_PYTHON)}")
        return told
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        content = None
    if isinstance(content, dict):
        told = _of_json(content)
    else:
        content = _mapping_in(text)
        told = _of_yaml(content, text)
    told = told or _of_text(path, content, text)
    if told is None:
        raise of_other_script(path.name, text) or ConfigError(
            f"{path}: unknown config format; known: {', '.join(FORMATS)}"
        )
    return told


def _of_text(path: Path, content: dict[str, Any] | None, text: str) -> str | None:
    """Return the format of a file that its sections do not tell.

    Raises:
        ConfigError: it is of a tool that is not read.
    """
    if experiment.TELLING.search(text):
        return experiment.FORMAT
    if llm_trainer.TELLING.search(text):
        return llm_trainer.FORMAT
    refused = of_other_tool(path.name, content, text)
    if refused is not None:
        raise refused
    if TELLING.search(with_sources(text, path.parent)):
        return megatron.FORMAT
    try:
        tables = {key for key, value in tomllib.loads(text).items() if isinstance(value, dict)}
    except (tomllib.TOMLDecodeError, RecursionError):
        tables = set()
    return torchtitan.FORMAT if TORCHTITAN_SECTIONS & tables else None


def of_configuration(path: Path) -> str | None:
    """Return the format of a YAML file that is no configuration of our own, None where it may be one.

    Raises:
        ConfigError: it is of a tool that is not read.
    """
    text = _text(path)
    content = _mapping_in(text)
    return None if content is None else _of_yaml(content, text) or _of_text(path, content, text)


def read_named(name: str, base: Path, num_gpus: int | None = None) -> Read:
    """Read what a name of ``from`` stands for: a file, or with ``hf:`` a model of the Hugging Face Hub.

    Args:
        name: path of a file, or ``hf:`` with the id of a model; behind ``#`` the key of a configuration inside it, such
            as ``config.json#text_config``.
        base: folder that paths are relative to.
        num_gpus: GPUs of the run, where the file does not decide them.

    Raises:
        FileNotFoundError: there is no such file.
        ConfigError: it cannot be fetched, the format is unknown, or it asks for what is not modelled.
    """
    if is_model_id(name):
        from predictor.formats.hugging_face import hub as hugging_face_hub  # costs a start that has none

        return hugging_face_hub.read_model(name)
    inside = part_of_file(str(base / name))
    return read_any(base / name, num_gpus) if inside is None else hugging_face.read(*inside)


def read_any(path: Path, num_gpus: int | None = None, data_parallel_size: int | None = None) -> Read:
    """Read a file of any known format into a part of a full-form configuration.

    Args:
        path: the file.
        num_gpus: GPUs of the run, for Megatron-LM, torchtitan and llm_trainer, which know the other degrees.
        data_parallel_size: replicas, for DeepSpeed, which does not.

    Raises:
        FileNotFoundError: there is no such file.
        ConfigError: the format is unknown, or the file asks for what is not modelled.
    """
    name = detect(path)
    if name == HUGECTR:
        raise ConfigError(f"{path} is a {HUGECTR}; predict it as it is, with --system")
    if name == hugging_face.FORMAT:
        return hugging_face.read(path)
    if name == deepspeed.FORMAT:
        return deepspeed.read(path, data_parallel_size)
    if name == experiment.FORMAT:
        return experiment.read(path)
    if name == llm_trainer.FORMAT:
        return llm_trainer.read(path, num_gpus)
    if name in (accelerate.FORMAT, llm_foundry.FORMAT):
        return accelerate.read(path) if name == accelerate.FORMAT else llm_foundry.read(path)
    if name == nemo.FORMAT:
        return nemo.read(path, num_gpus)
    if name == megatron_bridge.FORMAT:
        return megatron_bridge.read(*with_function(path), num_gpus)
    if name == torchtitan_python.FORMAT:
        return torchtitan_python.read(*with_function(path), num_gpus)
    return megatron.read(path, num_gpus) if name == megatron.FORMAT else torchtitan.read(path, num_gpus)


def read_arguments(arguments: Mapping[str, Any], program: str, num_gpus: int | None) -> Read:
    """Read arguments of Megatron-LM by name.

    Args:
        arguments: by name, with dashes in front or not; true where an argument takes no value.
        program: path of the program that they are of; empty where it is not known.
        num_gpus: GPUs of the run; None where they are not known.

    Raises:
        ConfigError: as those of a file.
    """
    return megatron.read_arguments(arguments, program, num_gpus)


def of_trainer(content: dict[str, Any], where: str, base: Path) -> Read:
    """Return the configuration that a file of our own trainers stands for.

    Raises:
        ConfigError: it cannot be predicted.
    """
    translate = experiment.translate if is_experiment(content) else llm_trainer.translate
    return translate(content, where, base)


def read_all(names: list[str], base: Path, num_gpus: int | None = None) -> list[Read]:
    """Read what the names of ``from`` stand for, as ``read_named`` does.

    Raises:
        FileNotFoundError: there is no such file.
        ConfigError: some cannot be read; the message has a line for every problem of them all.
    """
    problems = Problems()
    read = [problems.part(None, read_named, name, base, num_gpus) for name in names]
    problems.check()
    return [file for file in read if file is not None]
