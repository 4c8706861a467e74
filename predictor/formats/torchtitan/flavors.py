"""Models that torchtitan ships, by name and flavor: presets, or sizes of its own (flavors.yaml)."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

from predictor.core.base.errors import nearest
from predictor.core.base.read_yaml import read_mapping
from predictor.formats.fields import Fields

FILE = Path(__file__).resolve().parent / "flavors.yaml"
# Endings of flavors that say which kernel runs, or how weights are stored.
SAME_SIZES = re.compile(r"_(?:flex|flex_flash|varlen|sdpa)(?:_attn)?$|_(?:non_)?fused_qkv$")
# Models with towers that see images, and others with parts of their own.
NOT_MODELLED = {
    "flux": "it makes images",
    "muse_glimmer": "the gains of its norms are not modelled",
    "qwen3_vl": "its vision tower sees images whose number and sizes only the data say",
}
COMMON = {"rotary_fraction": 1.0, "biases": False, "tied_embeddings": False}


@cache
def flavors() -> dict[str, dict[str, Any]]:
    """Return by name and flavor a preset, or keys of the section ``model``."""
    return read_mapping(FILE)


def presets() -> dict[str, dict[str, str]]:
    """Return the presets by name and flavor."""
    of = {
        name: {flavor: it for flavor, it in sizes.items() if isinstance(it, str)} for name, sizes in flavors().items()
    }
    return {name: found for name, found in of.items() if found}


def model_of(section: Fields, name: str, flavor: str) -> tuple[dict[str, Any], str]:
    """Return the keys of ``model`` for a flavor and, where it has no sizes here, why.

    Models of others and flavors that a fork adds have none: their sizes have to be given.
    """
    known = flavors().get(name, {})
    exact = flavor if flavor in known else SAME_SIZES.sub("", flavor)
    found = known.get(exact)
    if isinstance(found, str):
        return {"preset": found}, ""
    if found is not None:
        return {**({} if "preset" in found else COMMON), **found}, ""
    if name in NOT_MODELLED:
        return {}, f"{section.where}: {section.prefix}name is {name!r}; {NOT_MODELLED[name]}"
    listed = known or flavors()
    key, value = ("flavor", flavor) if known else ("name", name)
    why = f"it has no preset.{nearest(value, listed)} Known{f' of {name}' if known else ''}: {', '.join(listed)}"
    return {}, f"{section.where}: {section.prefix}{key} is {value!r}; {why}"
