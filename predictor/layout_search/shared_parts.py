"""What searches that differ in their GPUs, batch or system share: stages, sizes and floors of candidates."""

from __future__ import annotations

from dataclasses import replace

from predictor.core.costs.published import PublishedSystem
from predictor.core.costs.slowest import slowdown
from predictor.layout_search.footprint import Footprints
from predictor.layout_search.space import Space
from predictor.layout_search.stages import Pipelines
from predictor.layout_search.timer import Timer


class SharedParts:
    """Parts of candidates by the run that they are of; one for all searches of a plan, or for a single search."""

    def __init__(self) -> None:
        """Begin without any."""
        self._sized: dict[Space, tuple[Pipelines, Footprints]] = {}
        self._timers: dict[tuple[Space, str, str], Timer] = {}

    def of(self, space: Space, system: PublishedSystem) -> tuple[Timer, Footprints]:
        """Return what times and sizes a space's candidates; floors are those of a system with a faster slowest GPU."""
        alike = replace(space, num_gpus=1, global_batch_size=1, max_context_parallel=1, max_micro_batch_size=1)
        alike = replace(alike, max_tensor_parallel=1, first_batch=0, offloads=False)
        if alike not in self._sized:
            pipelines = Pipelines(alike)
            self._sized[alike] = pipelines, Footprints(alike, pipelines)
        pipelines, footprints = self._sized[alike]
        key = alike, str(system.folder), system.precision
        first = self._timers.get(key)
        if first is not None and not (
            first.system.hardware is system.hardware and slowdown(first.system) <= slowdown(system)
        ):
            first = None
        timer = Timer(alike, system, pipelines, first)
        if first is None:
            self._timers[key] = timer
        return timer, footprints
