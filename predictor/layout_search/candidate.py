"""A candidate of a search: the parallel sizes and switches that it chooses."""

from __future__ import annotations

from typing import NamedTuple

from predictor.core.timeline.schedules import SCHEDULES
from predictor.core.workload.parallelism_keys import ZeroStage
from predictor.core.workload.run_choices import OffloadModule, Recompute, RecomputeModule

Retention = tuple[Recompute, tuple[RecomputeModule, ...], tuple[OffloadModule, ...]]
"""What a candidate does not keep on the GPU: a mode of recomputation with its modules, and offloaded modules."""


class Degrees(NamedTuple):
    """One way to multiply to the GPUs."""

    tensor: int
    context: int
    pipeline: int
    data: int
    expert: int
    expert_split: int | None = None
    """Ranks that split every expert; as all else where None."""


class Plan(NamedTuple):
    """A candidate: the choices of a search."""

    degrees: Degrees
    zero_stage: ZeroStage
    sequence_parallel: bool
    micro_batch_size: int
    num_micro_batches: int
    recompute: Recompute
    schedule: str
    num_chunks: int
    modules: tuple[RecomputeModule, ...] = ()
    """What selective recomputation covers; the core of attention if empty."""
    zero_group: int | None = None
    """Neighbouring ranks that share out states, where not all of them do (HSDP)."""
    recompute_layers: int | None = None
    """Layers of each chunk that full recomputation applies to; all if None."""
    offload_modules: tuple[OffloadModule, ...] = ()
    """Modules whose inputs travel to host memory."""

    @property
    def chunks(self) -> tuple[int, bool]:
        """Return the chunks of a stage, and whether the second ones come back up the stages."""
        return self.num_chunks, SCHEDULES[self.schedule].v_shaped

    @property
    def sharing(self) -> tuple[Degrees, ZeroStage, int | None]:
        """Return the parallel sizes and how replicas share out states."""
        return self.degrees, self.zero_stage, self.zero_group

    @property
    def recomputes_all(self) -> bool:
        """Return whether every layer is computed again as a whole."""
        return self.recompute is Recompute.FULL and self.recompute_layers is None
