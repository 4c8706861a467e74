"""The memory of a candidate as a plain number: every part is computed once and shared by all that have it.

The numbers are those of ``step_memory``; a test holds them to each other.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import cache
from math import inf
from typing import NamedTuple

from predictor.core.step.memory import allowance_bytes, end_bytes, stage_activations, together, working_bytes
from predictor.core.timeline.schedules import SCHEDULES
from predictor.core.workload.low_precision import cast_weights
from predictor.core.workload.offload import on_gpu_beside_host
from predictor.core.workload.pipeline import Pipeline, Stage
from predictor.core.workload.run_choices import Recompute
from predictor.core.workload.software import ON_DEEPSPEED
from predictor.core.workload.step_tasks import NO_MEMORY, BlockMemory
from predictor.core.workload.transformer import LayerKind, Loss
from predictor.core.workload.transformer_memory import edge_memory, layer_memory, stage_states
from predictor.layout_search.candidate import Plan
from predictor.layout_search.lines import Line
from predictor.layout_search.space import Space
from predictor.layout_search.stages import ROUNDING, Key, Pipelines, alike_layers, parted, shared_key


class _Held(NamedTuple):
    """What a stage's blocks hold together, and what each of its chunks keeps per micro-batch."""

    memory: BlockMemory
    chunks: list[float]


class _Computing(NamedTuple):
    """What a stage keeps of all micro-batches in flight, and what exists besides at its fullest moment."""

    kept: float
    working: float


def _within(limit: float, size: Callable[[int], float], count: int, likely: int) -> int:
    """Return how many of so many growing sizes are within a limit, given a likely answer."""
    if limit == inf:
        return count
    found = min(likely, count)
    while found < count and size(found) <= limit:
        found += 1
    while found and size(found - 1) > limit:
        found -= 1
    return found


class Footprints:
    """Sizes the candidates of one search: lists over the distinct stages of a pipeline."""

    def __init__(self, space: Space, pipelines: Pipelines) -> None:
        """Prepare for a space."""
        self._pipelines = pipelines
        # DeepSpeed's pipeline keeps a stage's outputs, of which every layer counts a share.
        self._keeps_outputs = space.base.framework in ON_DEEPSPEED
        # The head's gradient that is computed forward, of every micro-batch in flight.
        self._keeps_gradients = space.model.loss is Loss.FUSED_LINEAR
        self._states: dict[Key, list[float]] = {}
        self._least: dict[Key, float] = {}
        self._computing: dict[Key, list[_Computing]] = {}
        self._held: dict[Key, list[_Held]] = {}
        self._layers: dict[Key, BlockMemory] = {}
        self._edges: dict[Key, BlockMemory] = {}

    def least_bytes(self, plan: Plan) -> float:
        """Return what the fullest GPU of a candidate needs at least: states alone, the same for many candidates."""
        key = plan.sharing, self._pipelines.held(plan)
        known = self._least.get(key)
        if known is None:
            states = max(self._stage_states(plan, self._pipelines.of(plan)))
            known = self._least[key] = (states + allowance_bytes(states)) * (1.0 - ROUNDING)
        return known

    def memory_bytes(self, plan: Plan) -> float:
        """Return what the fullest GPU of a candidate needs."""
        stages = self._pipelines.of(plan)
        return self._needed(plan, stages, self._stage_states(plan, stages))

    def _needed(self, plan: Plan, stages: Pipeline, states: Sequence[float]) -> float:
        """Return what the fullest GPU of a candidate needs whose stages have such states."""
        tensors = 0.0
        for state, (kept, working) in zip(states, self._while_computing(plan, stages), strict=True):
            needed = state + kept + working
            if needed > tensors:
                tensors = needed
        return tensors + allowance_bytes(tensors)

    def fitting(
        self, line: Line, certain: float, limit: float, likely: tuple[int, int]
    ) -> tuple[Sequence[int], Sequence[int]]:
        """Return the numbers of a line's candidates that need no more than certain bytes, and of others up to a limit.

        A candidate holds as many samples in flight as one with smaller micro-batches, or more, so the first ones fit.

        Args:
            line: the candidates.
            certain: bytes of one GPU.
            limit: no less.
            likely: how many are within either of another line.
        """
        count, stages = len(line.batches), self._pipelines.of(line.first)
        states = self._stage_states(line.first, stages)

        @cache
        def size(number: int) -> float:
            return self._needed(line.plan(number), stages, states)

        if self._shrinks(line.first):
            within = [number for number in range(count) if size(number) <= limit]
            sure = [number for number in within if size(number) <= certain]
            return sure, [number for number in within if number not in sure]
        last = _within(limit, size, count, likely[1])
        first = _within(certain, size, last, likely[0])
        return range(first), range(first, last)

    def least_recomputed(self, plan: Plan, limit: float) -> Plan | None:
        """Return a candidate with as few recomputed layers of each chunk as keep its memory within a limit.

        None where it fits without recomputation, or with no fewer layers than all: candidates of their own.
        """
        most = max(sum([n for _, n in chunk.layers]) for chunk in self._pipelines.of(plan).chunks)
        counts = range(1, most)

        def size(layers: int) -> float:
            return self.memory_bytes(plan._replace(recompute_layers=layers))

        if self.memory_bytes(plan._replace(recompute=Recompute.NONE, recompute_layers=None)) <= limit:
            return None
        least = bisect_left(counts, True, key=lambda layers: size(layers) <= limit)
        return plan._replace(recompute_layers=counts[least]) if least < len(counts) else None

    def _shrinks(self, plan: Plan) -> bool:
        """Return whether larger micro-batches may need less: fewer gradients of the head wait for backward passes."""
        return self._keeps_gradients and SCHEDULES[plan.schedule].all_forward

    def _while_computing(self, plan: Plan, stages: Pipeline) -> list[_Computing]:
        """Return what every distinct stage holds beside its states."""
        num_stages, count = plan.degrees.pipeline, plan.num_micro_batches
        shared = shared_key(plan)
        retained = plan.recompute, plan.modules, plan.recompute_layers, plan.offload_modules
        key = (shared, retained, plan.schedule, num_stages, count, plan.num_chunks)
        known = self._computing.get(key)
        if known is None:
            schedule = SCHEDULES[plan.schedule]
            known = self._computing[key] = []
            for stage, (held, chunks) in zip(stages.distinct, self._held_by(plan, shared, stages), strict=True):
                kept = stage_activations(schedule, stage.earliest, num_stages, count, held, chunks)
                end = end_bytes(schedule, held, num_stages, count) if held.kept_last else 0.0
                known.append(_Computing(kept, working_bytes(held, end)))
        return known

    def _stage_states(self, plan: Plan, stages: Pipeline) -> list[float]:
        """Return bytes of states and gradient buffers of every distinct stage."""
        key = plan.sharing, self._pipelines.held(plan)
        known = self._states.get(key)
        if known is None:
            run = self._pipelines.run(plan)
            known = self._states[key] = [
                sum(
                    stage_states(
                        run,
                        [kind for kind, _ in stage.layers],
                        run.parameters_of(stage.layers, stage.is_first, stage.is_last),
                        cast_weights(run, stage.layers),
                    )
                )
                for stage in stages.distinct
            ]
        return known

    def _held_by(self, plan: Plan, shared: Key, stages: Pipeline) -> list[_Held]:
        """Return what every distinct stage's blocks hold."""
        retained = plan.recompute, plan.modules, plan.recompute_layers, plan.offload_modules
        key = (shared, retained, plan.degrees.pipeline, plan.chunks)
        known = self._held.get(key)
        if known is None:
            again, whole = alike_layers(plan)
            layers = [
                [
                    (self._layer(again if is_again else whole, shared, kind), n)
                    for kind, n, is_again in parted(plan, chunk.layers)
                ]
                for chunk in stages.chunks
            ]
            chunks = [sum([layer.kept * n for layer, n in of_chunk]) for of_chunk in layers]
            known = self._held[key] = [
                _Held(
                    together(
                        [(self._edge(plan, shared, stage), 1), *(each for i in stage.chunk_index for each in layers[i])]
                    ),
                    [chunks[i] for i in stage.chunk_index],
                )
                for stage in stages.distinct
            ]
        return known

    def _layer(self, plan: Plan, shared: Key, kind: LayerKind) -> BlockMemory:
        """Return what a layer holds; a candidate recomputes all its layers alike."""
        stages = plan.degrees.pipeline if self._keeps_outputs else 1
        key = (shared, plan.recompute, plan.modules, plan.offload_modules, stages, kind)
        known = self._layers.get(key)
        if known is None:
            run = self._pipelines.run(plan)
            known = self._layers[key] = on_gpu_beside_host(run, kind, layer_memory(run, kind))
        return known

    def _edge(self, plan: Plan, shared: Key, stage: Stage) -> BlockMemory:
        """Return what the model's beginning and end hold, of the stage that has them; nothing of it is recomputed."""
        if not (stage.is_first or stage.is_last):
            return NO_MEMORY
        key = (shared, stage.is_first, stage.is_last)
        known = self._edges.get(key)
        if known is None:
            known = self._edges[key] = edge_memory(self._pipelines.run(plan), stage.is_first, stage.is_last)
        return known
