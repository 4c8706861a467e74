"""Token embedding with absolute positions."""

from __future__ import annotations

import math

from torch import Tensor, nn
from torch.nn import functional

from llm_trainer.config import ModelConfig
from llm_trainer.models.rope import sinusoidal_table
from model_training_framework.trainer.operator_scopes import operator


class Embedding(nn.Module):
    """Token embedding, plus absolute positions unless they are rotary.

    Beside sinusoidal positions, whose entries are about 1, embeddings are scaled by sqrt(d_model) as in Vaswani et al.
    2017, arXiv:1706.03762, section 3.4.
    """

    def __init__(self, config: ModelConfig) -> None:
        """Create the tables."""
        super().__init__()
        self.dropout = config.dropout
        self.scale = math.sqrt(config.d_model) if config.positions == "sinusoidal" else 1.0
        self.tokens = nn.Embedding(config.vocab_size, config.d_model)
        self.positions = nn.Embedding(config.max_seq_len, config.d_model) if config.positions == "learned" else None
        self._table_shape = (config.max_seq_len, config.d_model)
        table = sinusoidal_table(*self._table_shape) if config.positions == "sinusoidal" else None
        self.register_buffer("table", table, persistent=False)

    def fill_buffers(self) -> None:
        """Compute the sinusoidal table, as after moving off the meta device."""
        if self.table is not None:
            self.table.copy_(sinusoidal_table(*self._table_shape))

    def forward(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        """Return hidden states.

        Args:
            input_ids: (batch, sequence) tokens.
            positions: (batch or 1, sequence) of the tokens.
        """
        with operator("embedding"):
            hidden = self.tokens(input_ids)
        if self.positions is not None or self.table is not None:
            with operator("position_embedding"):
                if self.positions is not None:
                    hidden = hidden + self.positions(positions)
                else:
                    hidden = hidden * self.scale + self.table[positions].to(hidden.dtype)
        if self.dropout and self.training:
            with operator("hidden_dropout"):
                hidden = functional.dropout(hidden, self.dropout)
        return hidden
