"""The sizes of one transformer layer call on one rank, from which kernel shapes follow."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from predictor.core.base.lazy import lazy
from predictor.core.costs.work import ELEMENT_BYTES, PRECISION_BYTES


@dataclass(frozen=True)  # no slots: what follows from the sizes is computed once
class LayerCall:
    """One micro-batch through one layer on one rank.

    Sizes are of the whole model; ``tensor_parallel_size`` and ``context_parallel_size`` divide them inside the
    operators, so that a measured table and a workload give the same shapes.

    Attributes:
        num_key_value_heads: heads of keys and values; 0: as many as there are query heads.
        head_width: width of one head; 0: hidden_size over the query heads.
        gated: the FFN's first matrix makes a gate as well (SwiGLU, GeGLU).
        window: tokens that a query sees, itself included; 0: all.
        segment: tokens of a document or a chunk that attention stays inside; 0: the whole sample.
        shared_key_values: one projection makes keys and values.
        output_gate: the projection of queries makes a gate of attention's output as well.
        sequence_parallel: norms and residual additions see 1 / tensor_parallel_size of the tokens.
        element_bytes: of an activation; decides what collectives send. No operator's shape depends on it.
        logit_bytes: of a logit as the loss reads it; frameworks widen logits to fp32 unless told otherwise.
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
    logit_bytes: int = int(PRECISION_BYTES["fp32"])
    num_key_value_heads: int = 0
    head_width: int = 0
    gated: bool = False
    window: int = 0
    context_parallel_size: int = 1
    sequence_parallel: bool = False
    segment: int = 0
    output_gate: bool = False
    shared_key_values: bool = False

    @lazy
    def sequence_per_rank(self) -> int:
        """Return the tokens of one sample that one context-parallel rank holds."""
        return self.sequence_length // self.context_parallel_size

    @lazy
    def tokens(self) -> int:
        """Return the tokens of one micro-batch on one rank."""
        return self.micro_batch_size * self.sequence_per_rank

    @lazy
    def unsplit_tokens(self) -> int:
        """Return the tokens that reach what tensor parallelism does not split: norms, residual additions, dropout."""
        return self.tokens // self.tensor_parallel_size if self.sequence_parallel else self.tokens

    @lazy
    def head_dim(self) -> int:
        """Return the width of one attention head."""
        return self.head_width or self.hidden_size // self.num_attention_heads

    @lazy
    def heads_per_rank(self) -> int:
        """Return the query heads of one tensor-parallel rank."""
        return self.num_attention_heads // self.tensor_parallel_size

    @lazy
    def key_value_heads_per_rank(self) -> int:
        """Return the key and value heads of one tensor-parallel rank; every rank has one at least (a copy)."""
        return max(1, (self.num_key_value_heads or self.num_attention_heads) // self.tensor_parallel_size)

    @lazy
    def attention_width(self) -> int:
        """Return the width of the queries, and of attention's output, on one rank."""
        return self.heads_per_rank * self.head_dim

    @lazy
    def qkv_width(self) -> int:
        """Return the width of what makes queries, keys and values on one rank, and the queries' gate."""
        query_heads = self.heads_per_rank * (2 if self.output_gate else 1)
        projections = 1 if self.shared_key_values else 2
        return (query_heads + projections * self.key_value_heads_per_rank) * self.head_dim

    @lazy
    def ffn_width(self) -> int:
        """Return the inner width of the FFN on one rank, the gate not counted."""
        return self.ffn_hidden_size // self.tensor_parallel_size

    @lazy
    def vocab_per_rank(self) -> int:
        """Return the rows of the embedding on one rank."""
        return padded_vocab_size(self.vocab_size, self.tensor_parallel_size) // self.tensor_parallel_size


def padded_vocab_size(vocab_size: int, tensor_parallel_size: int, multiple: int = 128) -> int:
    """Round a vocabulary up to a multiple of ``multiple`` on every rank.

    Source: Megatron-LM, ``make-vocab-size-divisible-by`` (default 128), applied per tensor-parallel rank.
    """
    step = multiple * tensor_parallel_size
    return ceil(vocab_size / step) * step


def residual_stream(call: LayerCall) -> tuple[int, int]:
    """Return the shape of norms, residual additions and dropout around both branches."""
    return call.unsplit_tokens, call.hidden_size


def ffn_inner(call: LayerCall) -> tuple[int, int]:
    """Return the shape of the FFN's non-linearity."""
    return call.tokens, call.ffn_width


def scores(call: LayerCall) -> tuple[int, int]:
    """Return the heads of one rank, and the rows of scores of each, which are as long."""
    return call.micro_batch_size * call.heads_per_rank, call.sequence_per_rank


def rotated(call: LayerCall) -> tuple[int, int, int]:
    """Return tokens, the mean of queries' and keys' heads, and the width of each that rotates."""
    heads = (call.heads_per_rank + call.key_value_heads_per_rank + 1) // 2
    return call.tokens, heads, int(call.head_dim * call.rotary_fraction)


def logits(call: LayerCall) -> tuple[int, int, int]:
    """Return tokens, the vocabulary of one rank, and the bytes of a logit as the loss reads it."""
    return call.tokens, call.vocab_per_rank, call.logit_bytes
