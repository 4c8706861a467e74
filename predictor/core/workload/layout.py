"""Layout of a model over ranks, and the nodes that each group of ranks spans."""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm, prod
from typing import Annotated

from pydantic import BeforeValidator, Field

from predictor.core.base.fields import Count, names
from predictor.core.base.lazy import lazy
from predictor.core.costs.collectives import Topology, topology_of

# Innermost first: tensor-parallel ranks are neighbours. Source: Megatron-LM core/parallel_state.py, order
# "tp-cp-ep-dp-pp"; DeepSpeed's PipeModelDataParallelTopology without the context.
RANK_ORDER = ("tp", "cp", "dp", "pp")


@dataclass(frozen=True, init=False, repr=False, eq=False)  # a base alone
class LayoutKeys:
    """Degrees of parallelism. The section ``parallelism`` checks the keys as a file is read, a layout has them."""

    tensor_parallel_size: Annotated[Count, Field(description="ranks that split every layer")] = 1
    pipeline_parallel_size: Annotated[Count, Field(description="stages")] = 1
    data_parallel_size: Annotated[Count, Field(description="replicas")] = 1
    context_parallel_size: Annotated[Count, Field(description="ranks that split every sample (ring attention)")] = 1
    expert_parallel_size: Annotated[
        Count, Field(description="data- and context-parallel ranks that share out the experts")
    ] = 1
    expert_tensor_parallel_size: Annotated[
        Count | None, Field(description="ranks that split every routed expert; tensor_parallel_size if absent")
    ] = None
    rank_order: Annotated[
        tuple[str, ...], BeforeValidator(names), Field(description="dimensions of parallelism from the innermost")
    ] = RANK_ORDER


@dataclass(frozen=True, kw_only=True)  # no slots: ranks and strides are computed once
class Layout(LayoutKeys):
    """Ranks of a run on its nodes, which they fill in order, as ``rank_order`` says from the innermost.

    Expert-parallel ranks are no dimension of their own: they are neighbouring ranks of the context- and data-parallel
    ones, which see other tokens, and each holds some of the experts. Where experts are split over fewer or more ranks
    than all else is, all ranks of a stage are counted anew for them: the innermost split an expert, the next hold other
    experts, the outermost the same ones (Liu et al. 2025, "MoE Parallel Folding", arXiv:2504.14960).

    ``switched_as`` is None where nodes are wired as the measured ones; see ``Topology``. ``gpus_per_domain`` is None
    where no NVLink domain spans nodes.
    """

    gpus_per_node: int
    switched_as: int | None = None
    gpus_per_domain: int | None = None

    @property
    def expert_split(self) -> int:
        """Return the ranks that split a routed expert."""
        return self.expert_tensor_parallel_size or self.tensor_parallel_size

    @property
    def is_folded(self) -> bool:
        """Return whether experts are split over other ranks than all else is."""
        return self.expert_split != self.tensor_parallel_size

    @property
    def stage_ranks(self) -> int:
        """Return the ranks of one pipeline stage."""
        return self.tensor_parallel_size * self.gradient_ranks

    @lazy
    def num_gpus(self) -> int:
        """Return the number of GPUs of the run."""
        return prod([self._size(name) for name in self.rank_order])

    @lazy
    def reach(self) -> int:
        """Return the ranks that reach each other without the network: of a node, or those placed in an NVLink domain.

        Of a domain that holds less than the run, whole blocks are used: multiples of a node and of the tensor-,
        context- and expert-parallel extents that fit, as many as divide the run's GPUs evenly. A run of 256 GPUs uses
        64 of 72.

        Source: NVIDIA, Slurm's topology/block plugin and its --segment option on GB200 NVL72.
        """
        most = self.gpus_per_domain
        if most is None:
            return self.gpus_per_node
        if self.num_gpus <= most:
            return self.num_gpus
        unit = self.gpus_per_node
        for extent in self._close_extents:
            if lcm(unit, extent) <= most:
                unit = lcm(unit, extent)
        blocks = range(most // unit * unit, 0, -unit)
        return next((block for block in blocks if self.num_gpus % block == 0), blocks[0])

    @property
    def _close_extents(self) -> tuple[int, ...]:
        """Return over how many neighbouring ranks the groups extend that exchange activations, the innermost first."""
        (inner, stride), _ = self._stage_dimensions if self.is_folded else self._token_dimensions
        ep = self.expert_parallel_size * (self.expert_split if self.is_folded else 1)
        return (
            self.tensor_parallel_size * self._stride("tp"),
            self.context_parallel_size * self._stride("cp") if self.context_parallel_size > 1 else 1,
            ep * stride if 1 < ep <= inner else 1,
        )

    @property
    def gradient_ranks(self) -> int:
        """Return the ranks that hold the same dense weights and see different tokens."""
        return self.data_parallel_size * self.context_parallel_size

    def _size(self, name: str) -> int:
        if name == "tp":
            return self.tensor_parallel_size
        if name == "cp":
            return self.context_parallel_size
        return self.data_parallel_size if name == "dp" else self.pipeline_parallel_size

    @lazy
    def _strides(self) -> dict[str, int]:
        """Distance between neighbouring ranks of each kind."""
        sizes = [self._size(name) for name in self.rank_order]
        return {name: prod(sizes[:inner]) for inner, name in enumerate(self.rank_order)}

    def _stride(self, name: str) -> int:
        return self._strides[name]

    def _group(self, size: int, stride: int) -> Topology:
        return self._spanning((size, stride))

    @lazy
    def _token_dimensions(self) -> list[tuple[int, int]]:
        """Return size and stride of the dimensions whose ranks see different tokens, the innermost first."""
        return [(self._size(name), self._stride(name)) for name in self.rank_order if name in ("cp", "dp")]

    def tensor_group(self) -> Topology:
        """Return what a tensor-parallel group spans."""
        return self._tensor_group

    @lazy
    def _tensor_group(self) -> Topology:
        return self._group(self.tensor_parallel_size, self._stride("tp"))

    def context_hop(self) -> Topology:
        """Return what a message around the context-parallel ring crosses; all ranks of a node send at once."""
        return self._hop(self.context_parallel_size, self._stride("cp"))

    def context_group(self) -> Topology:
        """Return what a context-parallel group spans."""
        return self._group(self.context_parallel_size, self._stride("cp"))

    def gradient_group(self) -> Topology:
        """Return what the ranks span that sum their gradients of dense weights."""
        return self._gradient_group

    @lazy
    def _gradient_group(self) -> Topology:
        return self._token_ranks(1, self.gradient_ranks)

    @lazy
    def _stage_dimensions(self) -> list[tuple[int, int]]:
        """Return size and stride of the ranks of a stage, those inside the stages' stride and those outside."""
        at = self.rank_order.index("pp")
        inside, outside = (prod(map(self._size, names)) for names in (self.rank_order[:at], self.rank_order[at + 1 :]))
        outer_stride = self._stride("pp") * self.pipeline_parallel_size
        if self.pipeline_parallel_size == 1:
            return [(inside * outside, 1), (1, inside * outside)]
        return [(inside, 1), (outside, outer_stride)]

    def _token_ranks(self, step: int, extent: int) -> Topology:
        """Return what every ``step``-th of ``extent`` neighbouring ranks spans, among those that see other tokens."""
        return self._among(self._token_dimensions, step, extent)

    def _stage_group(self, step: int, extent: int) -> Topology:
        """Return what every ``step``-th of ``extent`` neighbouring ranks of a stage spans."""
        return self._among(self._stage_dimensions, step, extent)

    def _among(self, dimensions: list[tuple[int, int]], step: int, extent: int) -> Topology:
        (inner, inner_stride), (_, outer_stride) = dimensions
        within, taken = min(step, inner), max(1, step // inner)
        reach, blocks = min(extent, inner), max(1, extent // inner)
        return self._joined((reach // within, inner_stride * within), (blocks // taken, outer_stride * taken))

    def sharing_group(self, size: int) -> Topology:
        """Return what ``size`` neighbouring ranks span that share out the states of dense weights."""
        return self._token_ranks(1, size)

    def replica_group(self, size: int) -> Topology:
        """Return what the ranks span that hold the same share where ``size`` ranks share out states."""
        return self._token_ranks(size, self.gradient_ranks)

    def expert_sharing_group(self, size: int) -> Topology:
        """Return what the ranks among ``size`` neighbouring ones span that share out the states of the same experts."""
        held = self._holding_all_experts
        if self.is_folded:
            return self._stage_group(held, max(size * self.tensor_parallel_size, held))
        return self._token_ranks(self.expert_parallel_size, max(size, self.expert_parallel_size))

    @property
    def _holding_all_experts(self) -> int:
        """Return the ranks that hold all experts once."""
        return self.expert_split * self.expert_parallel_size

    def expert_replica_group(self, size: int) -> Topology:
        """Return what the ranks span that hold the same share of the same experts' states."""
        if self.is_folded:
            held = max(size * self.tensor_parallel_size, self._holding_all_experts)
            return self._stage_group(held, self.stage_ranks)
        return self._token_ranks(max(size, self.expert_parallel_size), self.gradient_ranks)

    def expert_group(self) -> Topology:
        """Return what the ranks span that exchange tokens with each other's experts."""
        if self.is_folded:
            return self._stage_group(self.expert_split, self._holding_all_experts)
        return self._token_ranks(1, self.expert_parallel_size)

    def expert_tensor_group(self) -> Topology:
        """Return what the ranks span that split a routed expert."""
        return self._stage_group(1, self.expert_split) if self.is_folded else self.tensor_group()

    def expert_gradient_group(self) -> Topology:
        """Return what the ranks span that sum their gradients of the same experts."""
        if self.is_folded:
            return self._stage_group(self._holding_all_experts, self.stage_ranks)
        return self._token_ranks(self.expert_parallel_size, self.gradient_ranks)

    def _joined(self, inner: tuple[int, int], outer: tuple[int, int]) -> Topology:
        """Return what a group of two dimensions, (size, stride) each, spans."""
        (size, stride), (count, step) = inner, outer
        if count == 1 or size == 1 or step == size * stride:
            return self._group(size * count, step if size == 1 else stride)
        return self._spanning(inner, outer)

    def _spanning(self, *dimensions: tuple[int, int]) -> Topology:
        return topology_of(dimensions, self.reach, self.switched_as, self.num_gpus)

    def _hop(self, size: int, stride: int) -> Topology:
        """Return what a message to the next of ``size`` ranks crosses, ``stride`` apart.

        A link in a node if all of them share one. Between nodes all ranks of a node on the way send at once, and so
        share what leads out of it.
        """
        if self._group(size, stride).nodes == 1:
            return Topology(1, 2, self.switched_as)
        return Topology(2, min(stride, self.reach))

    def pipeline_hop(self) -> Topology:
        """Return what a message between neighbouring stages crosses."""
        return self._hop(self.pipeline_parallel_size, self._stride("pp"))

    def first_and_last_stage(self) -> Topology:
        """Return what the two ranks span that hold the same part of a shared embedding."""
        return Topology(1, 2, self.switched_as) if self.pipeline_hop().nodes == 1 else Topology(2, 1)
