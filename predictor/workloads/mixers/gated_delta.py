"""A gated delta layer: linear attention whose state forgets by a gate and is corrected by the delta rule.

Source: Yang et al. 2024, arXiv:2412.06464; transformers, models/qwen3_next/modeling_qwen3_next.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from predictor.workloads.mixers.linear import Linear, Split, total


@dataclass(frozen=True, slots=True)
class GatedDelta:
    """Sizes of a gated delta layer; several value heads may share a key head.

    Attributes:
        conv_kernel: tokens that the convolution of queries, keys and values sees.
        chunk_size: tokens that the recurrence computes with matrix products at once.
    """

    num_key_heads: int
    num_value_heads: int
    key_head_dim: int
    value_head_dim: int
    conv_kernel: int = 4
    chunk_size: int = 64

    @property
    def keys(self) -> int:
        """Return the width of all keys, which is that of all queries."""
        return self.num_key_heads * self.key_head_dim

    @property
    def values(self) -> int:
        """Return the width of all values."""
        return self.num_value_heads * self.value_head_dim

    @property
    def convolved(self) -> int:
        """Return the width of what the convolution sees: queries, keys and values."""
        return 2 * self.keys + self.values

    def linears(self, hidden_size: int) -> tuple[Linear, ...]:
        """Return the matrices: of queries, keys, values and gate; of write strengths and decays; of the output."""
        return (
            Linear("qkv_projection", hidden_size, self.convolved + self.values, Split.COLUMN),
            Linear("qkv_projection", hidden_size, 2 * self.num_value_heads, Split.COLUMN),
            Linear("attention_output", self.values, hidden_size, Split.ROW),
        )

    def parameters(self, hidden_size: int, tensor_parallel_size: int = 1) -> int:
        """Return the parameters on one rank; heads are split, the norm of a head's output is on every rank.

        A value head has a decay and a step-size bias; the convolution has no bias.
        """
        split = self.convolved * self.conv_kernel + 2 * self.num_value_heads
        matrices = total(self.linears(hidden_size), tensor_parallel_size)
        return matrices + split // tensor_parallel_size + self.value_head_dim
