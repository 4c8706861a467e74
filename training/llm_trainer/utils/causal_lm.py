"""Interface of a language model to generation, which its own ``generate`` calls."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from llm_trainer.config import ModelConfig


class CausalLM(Protocol):
    """A language model: tokens in, logits of every next token out, as TransformerLM."""

    config: ModelConfig
    training: bool

    def __call__(self, input_ids: Any, attention_mask: Any = None, labels: Any = None, cache: Any = None) -> Any:
        """Return loss and logits."""

    def parameters(self) -> Iterator[Any]:
        """Return the weights."""

    def to(self, device: Any) -> Any:
        """Move it."""

    def train(self, mode: bool = True) -> Any:
        """Switch dropout on or off."""

    def eval(self) -> Any:
        """Switch dropout off."""
