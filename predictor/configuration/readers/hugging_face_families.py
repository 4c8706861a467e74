"""Families of Hugging Face transformers that can be predicted, read from ``hugging_face_families.yaml``."""

from __future__ import annotations

from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from predictor.base.read_yaml import read_mapping

DATA = Path(__file__).with_suffix(".yaml")


class Windows(StrEnum):
    """The layers of a family that have a sliding window."""

    NONE = "none"
    ALL = "all"  # where sliding_window is set
    UPPER = "upper"  # from max_window_layers on, where use_sliding_window is set
    SWITCHED = "switched"  # all, where use_sliding_window is set
    UNCLEAR = "unclear"  # releases of transformers differ
    ALTERNATING = "alternating"  # every other layer, beginning with the first
    PATTERN = "pattern"  # all but every sixth


class Family(BaseModel):
    """One ``model_type``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    defaults: dict[str, Any] = Field(description="values of the configuration class for absent keys")
    fixed: dict[str, Any] = Field(description="keys of the section model that hold for the whole family")
    windows: Windows = Field(default=Windows.NONE, description="layers with a sliding window")
    gated: bool = Field(default=True, description="the FFN has a gate")
    has_experts: bool = Field(default=False, description="mixture of experts")
    names: dict[str, str] = Field(default={}, description="the family's own names of keys, by their usual names")


@cache
def families() -> dict[str, Family]:
    """Return the families by ``model_type``."""
    return {name: Family.model_validate(content) for name, content in read_mapping(DATA).items()}
