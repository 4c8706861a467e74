"""Families of Hugging Face transformers that can be predicted, read from ``hugging_face_families.yaml``."""

from __future__ import annotations

import json
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from predictor.core.base.read_yaml import read_mapping

DATA = Path(__file__).with_suffix(".yaml")
CLASS_DEFAULTS = DATA.with_name("defaults.json")
# What says the layers with experts of families that have dense ones at the start, whether or not the class declares it.
FIRST_LAYERS_KEYS = ("first_k_dense_replace", "moe_layer_freq")
BiasPart = Literal["qkv", "output", "ffn"]


class Windows(StrEnum):
    """The layers of a family that have a sliding window where no list names them."""

    NONE = "none"
    ALL = "all"  # where sliding_window is set
    UPPER = "upper"  # from max_window_layers on, where use_sliding_window is set if the class has it
    SWITCHED = "switched"  # all, where use_sliding_window is set
    UNCLEAR = "unclear"  # releases of transformers differ


class Period(BaseModel):
    """Layers of two kinds that alternate where no list names them: one of ``every`` has full attention."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    other: str = Field(default="sliding_attention", description="kind of the others, as transformers names it")
    every: int = Field(gt=0, description="layers of a period")
    key: str | None = Field(default=None, description="key that says another period")
    offset: int = Field(default=-1, description="layer of a period that has full attention; -1: the last")
    first_is_full: bool = Field(default=False, description="the model's first layer has full attention anyway")
    last_is_full: bool = Field(default=False, description="the model's last layer has full attention anyway")


class Other(BaseModel):
    """Small vectors that no key of the section model describes; their parameters are counted, their time is not."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    per: Literal["model", "layer", "attention_layer", "experts_layer"]
    of: tuple[int | str, ...] = Field(description="sizes to multiply: numbers, or keys of the configuration")


class Family(BaseModel):
    """One ``model_type``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    defaults: dict[str, Any] = Field(default={}, description="values for absent keys")
    aliases: dict[str, str] = Field(default={}, description="further names of keys")
    sections: tuple[str, ...] = Field(default=(), description="sections whose keys are read as if they stood outside")
    names: dict[str, str] = Field(default={}, description="the family's own names of keys, by their usual names")
    fixed: dict[str, Any] = Field(default={}, description="keys of the section model that hold for the whole family")
    moe: dict[str, Any] = Field(default={}, description="keys of the section moe that hold for the whole family")
    gated: bool = Field(default=True, description="the FFN has a gate")
    experts: Literal["none", "all", "first", "steps", "interleaved", "periodic", "range", "listed"] = Field(
        default="none", description="layers that have experts where no list names them"
    )
    first_dense: int = Field(default=0, description="dense layers at the start where no key says how many")
    windows: Windows = Field(default=Windows.NONE, description="layers with a sliding window")
    period: Period | None = Field(default=None, description="layers of two kinds that alternate")
    unrotated: Literal["full", "listed"] | None = Field(
        default=None,
        description="layers without rotary positions: those that see all keys, or those of no_rope_layers",
    )
    listed: bool = Field(default=False, description="layers follow no rule, so layer_types must list them")
    recurrence: str | None = Field(default=None, description="function of hugging_face_recurrences.py for its layers")
    channel_decay: bool = Field(default=False, description="its gated delta layers have a decay per channel")
    linear: str | None = Field(default=None, description="token mixer of layers that are no attention")
    biases: dict[str, tuple[BiasPart, ...]] = Field(
        default={"attention_bias": ("qkv", "output"), "mlp_bias": ("ffn",)},
        description="what a switch gives a bias",
    )
    always_biased: tuple[BiasPart, ...] = Field(default=(), description="what has a bias anyway")
    switches: dict[str, dict[str, Any]] = Field(
        default={}, description="keys of the section model where a switch is on"
    )
    switches_off: dict[str, dict[str, Any]] = Field(default={}, description="the same where it is off")
    needs: dict[str, tuple[Any, ...]] = Field(default={}, description="values of a key that are modelled")
    other: tuple[Other, ...] = Field(default=(), description="small vectors")
    notes: tuple[str, ...] = Field(default=(), description="what a prediction leaves out")
    position_rows: int = Field(default=0, description="rows of learned positions beyond max_position_embeddings")
    ignores: tuple[str, ...] = Field(default=(), description="keys of its files that its class does not use")
    reads: tuple[str, ...] = Field(default=(), description="keys that are refused of other families")
    floors_head_dim: bool = Field(default=False, description="heads need not divide hidden_size")
    encoder: bool = Field(default=False, description="an encoder (BERT)")
    special: str | None = Field(default=None, description="function of hugging_face_special.py for its own keys")

    def knows(self, name: str) -> bool:
        """Return whether the family's class has a key, or files of its models have it that the reader understands."""
        understood = {"tie_word_embeddings", *self.defaults, *self.reads, *self.needs, *self.names.values()}
        of_layers = FIRST_LAYERS_KEYS if self.experts == "first" else ()
        return name in understood or name in of_layers or (self.period is not None and name == self.period.key)

    @property
    def has_experts(self) -> bool:
        """Return whether a layer may have experts."""
        return self.experts != "none"


@cache
def class_defaults() -> dict[str, Any]:
    """Return the values of the configuration classes for absent keys, and further names of keys, by ``model_type``."""
    content: dict[str, Any] = json.loads(CLASS_DEFAULTS.read_text(encoding="utf-8"))
    return content


@cache
def family(model_type: str) -> Family:
    """Return a family, with the defaults of its class.

    Raises:
        KeyError: it is none of ``families``.
    """
    content = dict(_described()[model_type] or {})
    known = class_defaults().get(content.pop("class", model_type), {"values": {}, "aliases": {}})
    defaults = {**known["values"], **content.pop("defaults", {})}
    aliases: dict[str, str] = {}
    for name, key in known["aliases"].items():  # a file has either; the reader knows the one with a default
        aliases |= {key: name} if name in known["values"] else {name: key}
    aliases |= content.pop("aliases", {})
    return Family.model_validate({**content, "defaults": defaults, "aliases": aliases})


@cache
def _described() -> dict[str, Any]:
    return read_mapping(DATA)


def families() -> list[str]:
    """Return the families, by ``model_type``."""
    return list(_described())
