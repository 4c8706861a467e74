"""Low-rank adapters: beside a linear layer whose weights are frozen, two narrow ones train.

Source: Hu et al. 2021, arXiv:2106.09685.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class LoraTarget(StrEnum):
    """A linear layer that may have an adapter."""

    QKV = "qkv"
    ATTENTION_OUTPUT = "attention_output"
    FFN_UP = "ffn_up"
    FFN_DOWN = "ffn_down"


@dataclass(frozen=True, slots=True)
class Lora:
    """Adapters of a run.

    Attributes:
        rank: inner width of an adapter.
        targets: linear layers that have one.
        train_embeddings: embedding and output projection train too.
    """

    rank: int
    targets: tuple[LoraTarget, ...] = tuple(LoraTarget)
    train_embeddings: bool = False
