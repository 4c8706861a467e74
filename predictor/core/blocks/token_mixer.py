"""Interface of the token mixers beside plain attention: a file of this folder each, listed in ``mixers.py``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

from predictor.core.base.sizes import must_divide
from predictor.core.costs.layer_call import LayerCall
from predictor.core.kernel_rows import product
from predictor.core.rows import Matrix, Module, Reads, Role, Row, Split


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


class TokenMixer(ABC):
    """A token mixer: its sizes, of the whole model, are a section of the configuration; its rows are of one rank.

    Attributes:
        splits_layers: tensor-parallel ranks may split it.
        splits_samples: context-parallel ranks may split its samples.
        shared_out: keys of the sizes that tensor-parallel ranks share out.
        divide: pairs of keys, of which the first size divides the second.
    """

    __slots__ = ()
    splits_layers: ClassVar[bool] = True
    splits_samples: ClassVar[bool] = False
    shared_out: ClassVar[tuple[str, ...]] = ()
    divide: ClassVar[tuple[tuple[str, str], ...]] = ()

    @abstractmethod
    def rows(self, call: LayerCall, kernels: Kernels, biases: bool) -> Around:
        """Return its rows on one rank.

        Args:
            call: sizes of the layer.
            kernels: that it has in common with others.
            biases: attention's projections have them.
        """

    def check_sizes(self) -> None:
        """Check its sizes against each other.

        Raises:
            ConfigError: they do not agree.
        """
        for divisor, key in self.divide:
            must_divide(divisor, getattr(self, divisor), key, getattr(self, key))

    def check_split(self, tensor_parallel_size: int, context_parallel_size: int) -> None:
        """Check that ranks can share it out.

        Raises:
            ConfigError: they cannot.
        """
        for key in self.shared_out:
            must_divide("tensor_parallel_size", tensor_parallel_size, key, getattr(self, key))

    def core_multiplications(self, num_heads: int, keys: int) -> float:
        """Return the multiplications of a token in attention's core, whose query sees so many keys; 0 without one."""
        return 0.0

    def gathered_width(self, hidden_size: int) -> int:
        """Return the width per token of the inputs of column-parallel products."""
        return hidden_size

    def exchanged(self, call: LayerCall) -> list[int]:
        """Return the widths per token that context-parallel ranks exchange one after the other."""
        return []


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
