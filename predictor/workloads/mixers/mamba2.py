"""A Mamba-2 layer: an input projection, a short convolution, a state-space scan in chunks, a gated norm, an output.

Source: Dao & Gu 2024, arXiv:2405.21060; transformers, models/mamba2/modeling_mamba2.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from predictor.workloads.mixers.linear import Linear, Split, total


@dataclass(frozen=True, slots=True)
class Mamba2:
    """Sizes of a Mamba-2 layer.

    Attributes:
        num_heads, head_dim: of the inner values, ``num_heads · head_dim`` wide.
        state_size: width of a head's state, per element of the head.
        num_groups: heads of one group share what writes to their states and what reads them (B and C).
        conv_kernel: tokens that the convolution sees.
        chunk_size: tokens that the scan computes with matrix products at once.
        conv_bias: the convolution has a bias.
    """

    num_heads: int
    head_dim: int
    state_size: int
    num_groups: int
    conv_kernel: int = 4
    chunk_size: int = 256
    conv_bias: bool = True

    @property
    def inner(self) -> int:
        """Return the width of the inner values."""
        return self.num_heads * self.head_dim

    @property
    def convolved(self) -> int:
        """Return the width of what the convolution sees: values, B and C."""
        return self.inner + 2 * self.num_groups * self.state_size

    def linears(self, hidden_size: int) -> tuple[Linear, ...]:
        """Return the matrices: of gate, values, B, C and step sizes together, and of the output."""
        return (
            Linear("qkv_projection", hidden_size, self.inner + self.convolved + self.num_heads, Split.COLUMN),
            Linear("attention_output", self.inner, hidden_size, Split.ROW),
        )

    def parameters(self, hidden_size: int, tensor_parallel_size: int = 1) -> int:
        """Return the parameters on one rank; heads and groups are split, with their convolution and norm.

        A head has a decay, a step-size bias and a skip weight.
        """
        split = self.convolved * (self.conv_kernel + self.conv_bias) + 3 * self.num_heads + self.inner
        return total(self.linears(hidden_size), tensor_parallel_size) + split // tensor_parallel_size
