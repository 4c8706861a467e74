"""The sizes that a transformer layer's operators are called with on one rank, before they become kernel shapes."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from predictor.costs.work import ELEMENT_BYTES


@dataclass(frozen=True, slots=True)
class LayerCall:
    """One micro-batch through one layer on one tensor-parallel rank.

    ``element_bytes``, of an activation, decides what collectives send; no operator's shape depends on it.
    Sizes are of the whole model; ``tensor_parallel_size`` divides them inside the operators, so that a measured table
    and a workload say the same thing in the same way.
    """

    micro_batch_size: int
    sequence_length: int
    hidden_size: int
    num_attention_heads: int
    ffn_hidden_size: int
    vocab_size: int
    tensor_parallel_size: int
    rotary_fraction: float = 1.0
    causal: bool = True
    element_bytes: int = ELEMENT_BYTES

    @property
    def tokens(self) -> int:
        """Return the tokens of one micro-batch."""
        return self.micro_batch_size * self.sequence_length

    @property
    def head_dim(self) -> int:
        """Return the width of one attention head."""
        return self.hidden_size // self.num_attention_heads

    @property
    def heads_per_rank(self) -> int:
        """Return the attention heads of one tensor-parallel rank."""
        return self.num_attention_heads // self.tensor_parallel_size

    @property
    def vocab_per_rank(self) -> int:
        """Return the rows of the embedding on one rank."""
        return padded_vocab_size(self.vocab_size, self.tensor_parallel_size) // self.tensor_parallel_size


def padded_vocab_size(vocab_size: int, tensor_parallel_size: int, multiple: int = 128) -> int:
    """Round a vocabulary up to a multiple of ``multiple`` on every rank.

    Source: Megatron-LM, ``make-vocab-size-divisible-by`` (default 128), applied per tensor-parallel rank.
    """
    step = multiple * tensor_parallel_size
    return ceil(vocab_size / step) * step
