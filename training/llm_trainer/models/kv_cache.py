"""Keys and values of the tokens that a model has already seen."""

from __future__ import annotations

import torch
from torch import Tensor

from llm_trainer.exceptions import GenerationError


class KVCache:
    """Keys and values of every layer, in memory that is allocated once, at the first tokens.

    Attributes:
        max_length: tokens that it can hold.
        length: tokens that it holds.
    """

    def __init__(self, max_length: int) -> None:
        """Prepare an empty cache for sequences of at most ``max_length`` tokens."""
        self.max_length = max_length
        self.length = 0
        self._layers: dict[str, tuple[Tensor, Tensor]] = {}

    def update(self, layer: str, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Append a layer's new keys and values, and return all of them.

        ``length`` does not change before ``advance``, since every layer sees the same tokens.

        Args:
            layer: its name in the model.
            key: (batch, key and value heads, new tokens, width of a head).
            value: as ``key``.

        Raises:
            GenerationError: there is no room for the new tokens.
        """
        end = self.length + key.shape[2]
        if end > self.max_length:
            raise GenerationError(f"the cache holds {self.max_length} tokens; {end} were given. Make it longer")
        if layer not in self._layers:
            shape = (key.shape[0], key.shape[1], self.max_length, key.shape[3])
            self._layers[layer] = (key.new_zeros(shape), value.new_zeros(shape))
        keys, values = self._layers[layer]
        keys[:, :, self.length : end] = key
        values[:, :, self.length : end] = value
        return keys[:, :, :end], values[:, :, :end]

    def advance(self, num_tokens: int) -> None:
        """Count tokens that every layer has appended."""
        self.length += num_tokens

    def truncate(self, length: int) -> None:
        """Forget all tokens behind the first ``length``."""
        self.length = min(self.length, length)

    def select(self, rows: Tensor) -> None:
        """Keep these rows of the batch, in this order; a row may occur several times, as beams need it.

        Args:
            rows: (new batch) indices.
        """
        with torch.no_grad():
            for layer, (keys, values) in self._layers.items():
                self._layers[layer] = (keys.index_select(0, rows), values.index_select(0, rows))
