"""Read configurations of other tools and convert them to the full form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from predictor.core.base.errors import ConfigError
from predictor.core.schema.input_kind import HUGECTR, is_experiment, is_model_id, part_of_file
from predictor.core.schema.problems import Problems
from predictor.core.schema.read import Read
from predictor.formats.file_lines import with_line
from predictor.formats.folder import files_in
from predictor.formats.format import Format
from predictor.formats.shell.starts import WAY_OUT, of_other_script
from predictor.formats.source import DATA, TEXT, Source, with_function
from predictor.formats.table import TABLE, closest_format, format_of

__all__ = [
    "FORMATS",
    "Read",
    "detect",
    "files_in",
    "of_configuration",
    "of_trainer",
    "read_all",
    "read_any",
    "read_named",
]

FORMATS = tuple(known.name for known in TABLE if known.module)
MOST_KEYS = 8  # that a message shows of a file whose format is not known


def _recognised(source: Source) -> Format:
    """Return the format of a file.

    Raises:
        FileNotFoundError: there is no such file.
        ConfigError: its format is not known, or of a tool that is not read.
    """
    known = format_of(source)
    if known is None and source.syntax == TEXT:
        from predictor.formats.commands import COMMAND, is_command  # costs a start that has none

        if is_command(source):
            return COMMAND
        raise of_other_script(source.path.name, source.text) or ConfigError(_unknown(source))
    if known is None:
        raise ConfigError(_unknown(source))
    known.refuse_unread(source)
    return known


def _unknown(source: Source) -> str:
    """Return the message on a file whose format is not known: what it holds, and what it looks like."""
    if not source.text.strip():
        return f"{source.path} is empty; estimate-train-time show-example prints a configuration to start from"
    keys = list(source.content)
    shown = ", ".join(keys[:MOST_KEYS]) + (" …" if len(keys) > MOST_KEYS else "")
    held = f"{source.syntax} with the keys {shown}" if source.syntax in DATA else source.syntax
    nearest = closest_format(source)
    like = f" It looks most like {nearest[0]}, with {', '.join(nearest[1])}." if nearest else ""
    return (
        f"{source.path}: its format is not known; it is {held}.{like} Otherwise {WAY_OUT}. Known: {', '.join(FORMATS)}"
    )


def _source(path: Path, num_gpus: int | None = None, data_parallel_size: int | None = None) -> Source:
    return Source(*with_function(path), num_gpus, data_parallel_size)


def detect(path: Path) -> str:
    """Return the format of a file, told by its content; a function of a Python file may be named behind a colon.

    Raises:
        FileNotFoundError: there is no such file.
        ConfigError: the format is not a known one; the message names the tool that the file is of, or lists those.
    """
    return _recognised(_source(path)).name


def of_configuration(path: Path) -> str | None:
    """Return the format of a YAML file that is no configuration of our own, None where it may be one.

    Raises:
        ConfigError: it is of a tool that is not read.
    """
    source = _source(path)
    known = format_of(source) if source.syntax in DATA else None
    if known is not None:
        known.refuse_unread(source)
    return None if known is None else known.name


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
    if inside is None:
        return read_any(base / name, num_gpus)
    from predictor.formats.hugging_face import reader as hugging_face

    return hugging_face.read(*inside)


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
    source = _source(path, num_gpus, data_parallel_size)
    known = _recognised(source)
    if known.name == HUGECTR:
        raise ConfigError(f"{path} is a {HUGECTR}; predict it as it is, with --system")
    try:
        read = known.read(source)
    except ConfigError as error:
        raise with_line(error, source) from None
    return replace(read, format=known.name)


def read_arguments(arguments: Mapping[str, Any], program: str, num_gpus: int | None) -> Read:
    """Read arguments of Megatron-LM by name.

    Args:
        arguments: by name, with dashes in front or not; true where an argument takes no value.
        program: path of the program that they are of; empty where it is not known.
        num_gpus: GPUs of the run; None where they are not known.

    Raises:
        ConfigError: as those of a file.
    """
    from predictor.formats.megatron import reader as megatron

    return megatron.read_arguments(arguments, program, num_gpus)


def of_trainer(content: dict[str, Any], where: str, base: Path) -> Read:
    """Return the configuration that a file of our own trainers stands for.

    Raises:
        ConfigError: it cannot be predicted.
    """
    from predictor.formats import experiment, llm_trainer

    translate = experiment.translate if is_experiment(content) else llm_trainer.translate
    return translate(content, where, base)


def read_all(names: list[str], base: Path, num_gpus: int | None = None) -> list[Read]:
    """Read what the names of ``from`` stand for, as ``read_named`` does.

    Raises:
        FileNotFoundError: there is no such file.
        ConfigError: some cannot be read; the message has a line for every problem of them all.
    """
    problems = Problems()
    together = _of_one_run(names, base) if len(names) > 1 else []
    nothing = Read({}, ())
    read = []
    for name in names:
        if name not in together:
            read.append(problems.part(nothing, read_named, name, base, num_gpus))
        elif name == together[-1]:
            read.append(problems.part(nothing, _read_together, together, base, num_gpus))
        else:
            read.append(nothing)  # the last of them says all
    problems.check()
    return read


def _of_one_run(names: list[str], base: Path) -> list[str]:
    """Return the names of files that are parts of one run; none where fewer than two are."""
    files = [name for name in names if not is_model_id(name) and (base / name).is_file()]
    told = {name: format_of(_source(base / name)) for name in files}
    found = [name for name, known in told.items() if known is not None and known.joins]
    return found if len(found) > 1 else []


def _read_together(names: list[str], base: Path, num_gpus: int | None) -> Read:
    from predictor.formats.gpt_neox.reader import read_files  # the one format whose files join

    return read_files([_source(base / name) for name in names], num_gpus)
