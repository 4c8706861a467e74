"""What every token mixer beside plain attention says of itself; a file of this folder each."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from predictor.costs.operator import Direction
from predictor.workloads.layer_call import LayerCall
from predictor.workloads.mixers.linear import Linear
from predictor.workloads.tasks import Task


class Kernels(NamedTuple):
    """How a run computes what a mixer has in common with others.

    Attributes:
        norm: operator of a norm.
        fused_rope: queries and keys are rotated, and their parts joined, in one kernel each.
    """

    norm: str
    fused_rope: bool


class KeptByMixer(NamedTuple):
    """Bytes that a token mixer keeps for its backward pass, its input's norm and attention's sums aside.

    Attributes:
        latents: before and behind their norms.
        qkv: what the core of the mixer reads.
        core: what the core makes.
    """

    latents: float
    qkv: float
    core: float


class TokenMixer(Protocol):
    """A token mixer; sizes are of the whole model unless a call or a size of the tensor-parallel group is given."""

    def linears(self, hidden_size: int, num_heads: int) -> tuple[Linear, ...]:
        """Return its matrices; ``num_heads`` are attention's."""

    def parameters(self, hidden_size: int, num_heads: int, tensor_parallel_size: int = 1) -> int:
        """Return its parameters on one rank."""

    def biases(self, hidden_size: int) -> int:
        """Return the parameters of its biases, where attention's layers have them."""

    def core_multiplications(self, num_heads: int, keys: int) -> float:
        """Return the multiplications of a token beside the matrices; attention's query sees so many keys."""

    def gathered_width(self, hidden_size: int) -> int:
        """Return the width per token of what column-parallel products read."""

    def tasks(self, call: LayerCall, direction: Direction, kernels: Kernels) -> list[Task]:
        """Return what one pass runs, but for attention's core."""

    def kept(self, call: LayerCall) -> KeptByMixer:
        """Return what a pass keeps on one rank."""
