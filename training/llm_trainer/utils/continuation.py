"""Rows of tokens that grow by one token at a time, and the model's logits of the next one."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from llm_trainer.exceptions import GenerationError
from llm_trainer.models.kv_cache import KVCache
from llm_trainer.utils.causal_lm import CausalLM
from llm_trainer.utils.generation_config import GenerationConfig
from llm_trainer.utils.sampling import apply_repetition_penalty


class Continuation:
    """Rows of tokens that grow by one token at a time.

    Attributes:
        tokens: (rows, sequence), padding on the left where a row is shorter.
    """

    def __init__(
        self, model: CausalLM, tokens: Tensor, mask: Tensor | None, max_length: int, config: GenerationConfig
    ) -> None:
        """Begin with prompts.

        Args:
            model: in evaluation mode.
            tokens: (rows, sequence).
            mask: (rows, sequence), 1 for a token and 0 for padding; None: there is no padding.
            max_length: to which the rows may grow, padding included.
            config: penalty of repetitions, vocabulary, cache.
        """
        self.tokens = tokens
        self._model = model
        self._mask = mask
        self._config = config
        self._cache = KVCache(max_length) if config.use_cache else None

    def logits(self) -> Tensor:
        """Return the logits of every row's next token, (rows, vocabulary), with repetitions penalised.

        Raises:
            GenerationError: the model's logits are not numbers.
        """
        new = self.tokens if self._cache is None else self.tokens[:, self._cache.length :]
        output = self._model(new, attention_mask=self._mask, cache=self._cache)
        logits = output.logits[:, -1].float()
        if self._config.vocab_size is not None:
            logits[:, self._config.vocab_size :] = -math.inf
        if bool(logits.isnan().any()):
            raise GenerationError(
                f"the model's logits of token {self.tokens.shape[1]} are not numbers; its weights are damaged, or its "
                "training diverged"
            )
        return apply_repetition_penalty(logits, self._real_tokens(), self._config.repetition_penalty)

    def append(self, tokens: Tensor) -> None:
        """Add a token to every row: (rows,)."""
        self.tokens = torch.cat((self.tokens, tokens[:, None]), dim=1)
        if self._mask is not None:
            self._mask = torch.cat((self._mask, self._mask.new_ones(len(tokens), 1)), dim=1)

    def select(self, rows: Tensor) -> None:
        """Keep these rows, (new rows,), in this order; a row may occur several times."""
        self.tokens = self.tokens[rows]
        if self._mask is not None:
            self._mask = self._mask[rows]
        if self._cache is not None:
            self._cache.select(rows)

    def _real_tokens(self) -> Tensor:
        """Return each row's tokens, its padding replaced by a token that it has."""
        if self._mask is None:
            return self.tokens
        return torch.where(self._mask.bool(), self.tokens, self.tokens[:, -1:])
