"""The configuration that the name of a model stands for: a preset, a configuration, or a file of another tool."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from predictor.core.base.errors import ConfigError, nearest
from predictor.core.base.read_yaml import read_mapping
from predictor.core.plan.loading import OTHER_TOOLS, on_nodes_of, other_format, read_config
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


def content_of_model(
    model: str | dict[str, Any], beside: OwnKeys = NOTHING
) -> tuple[dict[str, Any], Path, tuple[str, ...]]:
    """Return the configuration that a model stands for, the folder its paths start from, and notes on its files.

    Args:
        model: a preset's name, a file (a configuration, or one of another tool), ``hf:`` with the id of a model of the
            Hugging Face Hub, or the content of a configuration.
        beside: what is said beside the files.

    Raises:
        ConfigError: it is neither a preset nor a file, or the file says no model.
    """
    if isinstance(model, dict):
        base = Path.cwd()
        content, notes = completed(on_nodes_of(model), base, beside)
        return content, base, notes
    path = file_of(Path(model))
    name = spelled(model)
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
    if not isinstance(content.get("model"), dict):
        raise ConfigError(
            f"--model is {model}, which says no model; name a preset or a file that does (a Hugging Face "
            "config.json, Megatron-LM arguments), or put both into a configuration with from: [...]"
        )
    return content, base, notes
