"""The model section of a configuration file."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from predictor.core.base.fields import Count, Switch, names
from predictor.core.blocks.mixers import Mixer
from predictor.core.schema.section import Section
from predictor.core.workload.architecture import MixtureOfExperts
from predictor.core.workload.model_keys import ModelKeys
from predictor.core.workload.switches import Ffn


def _pattern(value: object) -> object:
    """Refuse a pattern that is no list of names, or an empty one."""
    names(value)
    if not value:
        raise ValueError("it is empty; list the layers of one period, or leave it out")
    return value


# Names of an enumeration; a string of a file is checked against it.
Pattern = BeforeValidator(_pattern)


class ModelSection(Section, ModelKeys):  # type: ignore[misc]  # sections are frozen by their configuration
    """The model: keys of the architecture, and those that it has in another form."""

    ffn_hidden_size: Count | None = Field(default=None, description="inner width of the FFN; 4 × hidden_size if absent")
    num_key_value_heads: Count | None = Field(default=None, description="heads of keys and values; all if absent")
    head_dim: Count | None = Field(default=None, description="width of a head; hidden_size over the heads if absent")
    sliding_window: Count | None = Field(default=None, description="tokens that a query sees; all if absent")
    vocab_size: Count = Field(default=50257, description="tokens of the vocabulary, before padding")
    rotary_fraction: float = Field(
        default=1.0, strict=True, ge=0.0, le=1.0, description="rotated share of a head; 0: learned positions"
    )
    rotary_layers: tuple[Switch, ...] | None = Field(
        default=None, description="layers whose attention is rotated, a pattern that repeats; all if absent"
    )
    num_position_embeddings: Count | None = Field(
        default=None, description="rows of learned positions; sequence_length if absent"
    )
    layer_types: Annotated[tuple[Mixer, ...], Pattern] | None = Field(
        default=None, description="token mixers of the layers, a pattern that repeats"
    )
    ffn_types: Annotated[tuple[Ffn, ...], Pattern] | None = Field(
        default=None, description="FFNs of the layers, a pattern that repeats"
    )
    attention_chunk: Count | None = Field(default=None, description="tokens of a chunk of chunked attention (Llama 4)")
    moe: MixtureOfExperts | None = Field(default=None, description="mixture of experts")
