"""Model presets by name: sizes from published configurations, with parameter counts to verify them."""

from __future__ import annotations

import re
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from predictor.core.base.errors import ConfigError, nearest, same_name
from predictor.core.base.read_yaml import first_problem, read_mapping

FOLDER = Path(__file__).resolve().parent

# Families that no preset can describe, by the beginning of their names, and why.
UNSUPPORTED = {
    "deepseek-v4": "its compressed attention and hyper-connections are not modelled",
    "gemma3n": "its per-layer embeddings are not modelled",
    "zamba": "layers that share their weights are not modelled",
}


class Preset(BaseModel):
    """A published model."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    family: str = Field(description="the file that it is in")
    parameters: int = Field(gt=0, description="parameters of the model, its vocabulary not padded")
    published: bool = Field(description="``parameters`` was published; otherwise it was computed from the shape")
    source: str = Field(min_length=1, description="where the count, the shape and the sequence length come from")
    model: dict[str, Any] = Field(description="keys of the section model of a configuration")


@cache
def _family(path: Path) -> dict[str, Preset]:
    """Return the presets of one file by name."""
    presets = {}
    for name, content in read_mapping(path).items():
        try:
            presets[name] = Preset.model_validate({"name": name, "family": path.stem, **content})
        except ValidationError as error:
            raise ConfigError(f"{path}: {name}.{first_problem(error)}") from None
    return presets


@cache
def _files() -> dict[str, Path]:
    """Return the file of every preset by its name: a start that needs one preset parses one file."""
    names = re.compile(r"^([\w.-]+):$", re.MULTILINE)
    return {
        name: path for path in sorted(FOLDER.glob("*.yaml")) for name in names.findall(path.read_text(encoding="utf-8"))
    }


def preset_names() -> list[str]:
    """Return the names of the presets, by family."""
    return list(_files())


def spelled(name: str) -> str | None:
    """Return the preset's own spelling of a name, whatever its case and its hyphens; None where none is meant."""
    known = _files()
    return name if name in known else same_name(name, known)


def find_preset(name: str) -> Preset:
    """Return a preset with its count and its sources; case, hyphens, dots and underscores of the name do not count.

    Raises:
        ConfigError: there is none of that name; the message has the nearest name, or why the family is not supported.
    """
    known = _files()
    meant = spelled(name)
    if meant is not None:
        return _family(known[meant])[meant]
    lower = name.lower()
    for family, reason in UNSUPPORTED.items():
        if lower.startswith(family):
            raise ConfigError(f"model {name} is not supported: {reason}. Presets: {', '.join(known)}")
    raise ConfigError(f"model {name} is not a preset.{nearest(lower, known)} Presets: {', '.join(known)}")


def preset(name: str) -> dict[str, Any]:
    """Return a copy of a preset's keys of the section ``model``.

    Raises:
        ConfigError: there is no preset of that name.

    >>> preset("llama3-70b")["num_key_value_heads"]
    8
    """
    return deepcopy(find_preset(name).model)
