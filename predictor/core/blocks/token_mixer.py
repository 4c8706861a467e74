"""Common interface of the token mixers beside plain attention; a file of this folder each."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from predictor.core.kernel_rows import product
from predictor.core.rows import Matrix, Module, Reads, Role, Row, Split
from predictor.core.workload.layer_call import LayerCall


class Kernels(NamedTuple):
    """Kernels that token mixers have in common.

    Attributes:
        norm: operator of a norm.
        norm_weights: parameters of a norm per element.
        fused_rope: queries and keys are rotated, and their parts joined, in one kernel each.
    """

    norm: str
    norm_weights: int
    fused_rope: bool


class Around(NamedTuple):
    """A token mixer's rows before and behind the core of attention, which others than attention do not have."""

    before: list[Row]
    behind: list[Row]


class TokenMixer(Protocol):
    """A token mixer; sizes are of the whole model."""

    def rows(self, call: LayerCall, kernels: Kernels, biases: bool) -> Around:
        """Return its rows on one rank.

        Args:
            call: sizes of the layer.
            kernels: that it has in common with others.
            biases: attention's projections have them.
        """

    def core_multiplications(self, num_heads: int, keys: int) -> float:
        """Return the multiplications of a token in attention's core, whose query sees so many keys."""

    def gathered_width(self, hidden_size: int) -> int:
        """Return the width per token of the inputs of column-parallel products."""


def out_projection(call: LayerCall, width: int, outputs: int) -> Row:
    """Return the product that writes a mixer's output, so wide on one rank, to the residual stream."""
    return product(
        "out_projection",
        Module.MIXER,
        "attention_output",
        (call.tokens, width, outputs),
        Split.ROW,
        Reads(Role.CORE, call.tokens * width),
        matrix=Matrix.OUT_PROJECTION,
    )
