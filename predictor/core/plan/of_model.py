"""The configuration that the name of a model stands for: a preset, a configuration, or a file of another tool."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from predictor.core.base.errors import ConfigError, nearest
from predictor.core.base.read_yaml import read_mapping
from predictor.core.plan.loading import OTHER_TOOLS, on_nodes_of, read_config
from predictor.core.plan.other_tools import other_format
from predictor.core.schema.foreign import readers
from predictor.core.schema.inherited_keys import NOTHING, OwnKeys, completed, file_of
from predictor.core.schema.input_kind import HUB, HUGECTR, TRAINERS, is_model_id, part_of_file
from predictor.core.schema.presets import preset_names, spelled

YAML = (".yml", ".yaml")
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")  # owner and name


def _taken(model: str) -> str | None:
    """Return what ``from`` names of a model of a hub, or of a configuration inside a file; None for anything else."""
    if is_model_id(model):
        return model
    inside = part_of_file(model)
    return f"{inside[0].resolve()}#{inside[1]}" if inside is not None and inside[0].is_file() else None


def is_of_other_tool(model: str) -> bool:
    """Return whether a name is that of another tool's file, or of a model of a hub, which no command takes as it is.

    Raises:
        ConfigError: a file is of no known format.
    """
    if _taken(model) is not None:
        return True
    path = file_of(Path(model))
    if path.is_dir():
        return own_in(path) is None
    if not path.is_file():
        return False
    if path.suffix in YAML:
        return other_format(path, read_mapping(path)) is not None
    if path.suffix not in OTHER_TOOLS:
        return False
    return readers().detect(path) not in (*TRAINERS, HUGECTR)


def is_own(model: str) -> bool:
    """Return whether a model is named by a configuration of our own, which keeps its own defaults."""
    path = file_of(Path(model))
    if spelled(model) is not None or _taken(model) is not None or path.suffix not in YAML or not path.exists():
        return False
    return other_format(path, read_mapping(path)) is None


def _unknown(model: str) -> str:
    """Return the message on a name that is neither a file nor a preset; a name with an owner may be of a hub."""
    own_name = model.rpartition("/")[2]
    known = spelled(own_name)
    meant = f" Did you mean {known}?" if known is not None else nearest(own_name.lower(), preset_names())
    hub = f" A model of the Hugging Face Hub is {HUB}{model}." if HUB_ID.fullmatch(model) else ""
    return f"--model is {model}; expected a file, or a preset (list-presets shows all).{meant}{hub}"


def _of_files(paths: Sequence[Path], beside: OwnKeys) -> tuple[dict[str, Any], Path, tuple[str, ...]]:
    """Return the configuration that several files make: later ones count before earlier, one of our own before all.

    Raises:
        ConfigError: two are configurations of our own, or one cannot be read.
    """
    own = [path for path in paths if is_own(str(path))]
    if len(own) > 1:
        raise ConfigError(
            f"{own[0]} and {own[1]} are both configurations; give one, and files of other tools beside it"
        )
    others = [str(path.resolve()) for path in paths if path not in own]
    content, base = read_config(own[0]) if own else ({}, paths[0].resolve().parent)
    named = content.get("from", [])
    files = [*others, *([named] if isinstance(named, str) else named)]
    content = {**content, "from": files} if files else content
    whole, notes = completed(on_nodes_of(content), base, beside)
    return whole, base, notes


def own_in(folder: Path) -> Path | None:
    """Return the configuration of our own in a run's folder, which then counts alone; None without one.

    Raises:
        ConfigError: there are several.
    """
    own = [path for path in sorted(folder.iterdir()) if path.suffix in YAML and _says_system(path)]
    if len(own) > 1:
        raise ConfigError(f"{folder} has several configurations: {', '.join(path.name for path in own)}; name one")
    return own[0] if own else None


def _says_system(path: Path) -> bool:
    """Return whether a YAML file is a configuration that names its system."""
    try:
        content = read_mapping(path)
    except (ConfigError, yaml.YAMLError):
        return False
    return "system" in content and is_own(str(path))


def _of_folder(folder: Path, beside: OwnKeys) -> tuple[dict[str, Any], Path, tuple[str, ...]]:
    """Return the configuration that the files of a run's folder make.

    Raises:
        ConfigError: it has none that is known, or several that may be meant.
    """
    files, note = readers().files_in(folder)
    content, base, notes = _of_files(files, beside)
    return content, base, (note, *notes)


def content_of_model(
    model: str | Sequence[str] | dict[str, Any], beside: OwnKeys = NOTHING
) -> tuple[dict[str, Any], Path, tuple[str, ...]]:
    """Return the configuration that a model stands for, the folder its paths start from, and notes on its files.

    Args:
        model: a preset's name, a file (a configuration, or one of another tool), a run's folder, several files, ``hf:``
            with the id of a model of the Hugging Face Hub, or the content of a configuration.
        beside: what is said beside the files.

    Raises:
        ConfigError: it is neither a preset nor a file, or the file says no model.
    """
    if isinstance(model, dict):
        base = Path.cwd()
        content, notes = completed(on_nodes_of(model), base, beside)
        return content, base, notes
    if not isinstance(model, str):
        return _with_model(" ".join(model), *_of_files([Path(name) for name in model], beside))
    path = file_of(Path(model))
    name = spelled(model)
    if path.is_dir() and name is None:
        return _with_model(model, *_of_folder(path, beside))
    if name is not None:
        content, base = {"model": name}, Path.cwd()
    elif (taken := _taken(model)) is not None:
        content, base = {"from": taken}, Path.cwd()
    elif not path.exists():
        raise ConfigError(_unknown(model))
    elif is_own(model):
        content, base = read_config(path)
        content, notes = completed(on_nodes_of(content), base, beside)
        return content, base, notes
    else:
        content, base = {"from": str(Path(model).resolve())}, path.resolve().parent
    content, notes = completed(content, base, beside)
    return _with_model(model, content, base, notes)


def _with_model(
    name: str, content: dict[str, Any], base: Path, notes: tuple[str, ...]
) -> tuple[dict[str, Any], Path, tuple[str, ...]]:
    """Return what files make, once they say a model.

    Raises:
        ConfigError: they do not.
    """
    if not {"num_layers", "preset"} & (content.get("model") or {}).keys():
        raise ConfigError(
            f"{name} says no model; name a file that does beside it (a Hugging Face config.json, Megatron-LM "
            f"arguments), as in predict config.json {Path(name).name}, or put it into a configuration with from: [...]"
        )
    return content, base, notes
