"""The memory of a candidate as a plain number: every part is computed once and shared by all that have it.

The numbers are those of ``step_memory``; a test holds them to each other.
"""

from __future__ import annotations

from predictor.search.space import Plan, Space
from predictor.search.stages import Key, Pipelines, shared_key
from predictor.step.memory import allowance_bytes, end_bytes, stage_activations, together, working_bytes
from predictor.timeline.schedules import SCHEDULES
from predictor.workloads.low_precision_memory import cast_weights
from predictor.workloads.pipeline import Pipeline, Stage
from predictor.workloads.software import ON_DEEPSPEED
from predictor.workloads.step_tasks import BlockMemory
from predictor.workloads.transformer import LayerKind
from predictor.workloads.transformer_memory import edge_memory, layer_memory, stage_states


class Footprints:
    """Sizes the candidates of one search: lists over the distinct stages of a pipeline."""

    def __init__(self, space: Space, pipelines: Pipelines) -> None:
        """Prepare for a space."""
        self._space = space
        self._pipelines = pipelines
        # DeepSpeed's pipeline keeps a stage's outputs, of which every layer counts a share.
        self._keeps_outputs = space.base.framework in ON_DEEPSPEED
        self._kept: dict[Key, list[float]] = {}
        self._states: dict[Key, list[float]] = {}
        self._held: dict[Key, list[BlockMemory]] = {}
        self._layers: dict[Key, BlockMemory] = {}
        self._edges: dict[Key, BlockMemory] = {}

    def memory_bytes(self, plan: Plan) -> float:
        """Return what the fullest GPU of a candidate needs."""
        tensors = 0.0
        stages = self._pipelines.of(plan)
        activations, states, helds = (
            self._activations(plan, stages),
            self._stage_states(plan, stages),
            self._held_by(plan),
        )
        for state, kept, held in zip(states, activations, helds, strict=True):
            end = 0.0
            if held.kept_last:
                end = end_bytes(SCHEDULES[plan.schedule], held, plan.degrees.pipeline, plan.num_micro_batches)
            needed = state + kept + working_bytes(held, end)
            if needed > tensors:
                tensors = needed
        return tensors + allowance_bytes(tensors)

    def _activations(self, plan: Plan, stages: Pipeline) -> list[float]:
        """Return what every distinct stage keeps of all micro-batches in flight."""
        num_stages, count = plan.degrees.pipeline, plan.num_micro_batches
        shared = shared_key(plan), plan.recompute
        key = (shared, plan.schedule, num_stages, count, plan.num_chunks)
        known = self._kept.get(key)
        if known is None:
            schedule = SCHEDULES[plan.schedule]
            layers = {kind: self._layer(plan, shared, kind).kept for kind in stages.kinds}
            chunks = [sum([layers[kind] * n for kind, n in chunk.layers]) for chunk in stages.chunks]
            known = self._kept[key] = [
                stage_activations(
                    schedule, stage.earliest, num_stages, count, held, [chunks[i] for i in stage.chunk_index]
                )
                for stage, held in zip(stages.distinct, self._held_by(plan), strict=True)
            ]
        return known

    def _stage_states(self, plan: Plan, stages: Pipeline) -> list[float]:
        """Return bytes of states and gradient buffers of every distinct stage."""
        key = (plan.degrees, plan.zero_stage, plan.num_chunks)
        known = self._states.get(key)
        if known is None:
            run = self._space.run(plan)
            known = self._states[key] = [
                sum(
                    stage_states(
                        run,
                        [kind for kind, _ in stage.layers],
                        run.rank_parameters(stage.earliest),
                        cast_weights(run, stage.layers),
                    )
                )
                for stage in stages.distinct
            ]
        return known

    def _held_by(self, plan: Plan) -> list[BlockMemory]:
        """Return what every distinct stage's blocks hold together."""
        shared = shared_key(plan), plan.recompute
        key = (shared, plan.degrees.pipeline, plan.num_chunks)
        known = self._held.get(key)
        if known is None:
            stages = self._pipelines.of(plan)
            layers = {kind: self._layer(plan, shared, kind) for kind in stages.kinds}
            known = self._held[key] = [
                together([(self._edge(plan, shared, stage), 1), *((layers[kind], n) for kind, n in stage.layers)])
                for stage in stages.distinct
            ]
        return known

    def _layer(self, plan: Plan, shared: Key, kind: LayerKind) -> BlockMemory:
        """Return what a layer holds; a candidate recomputes all its layers alike."""
        stages = plan.degrees.pipeline if self._keeps_outputs else 1
        known = self._layers.get((shared, stages, kind))
        if known is None:
            known = self._layers[shared, stages, kind] = layer_memory(self._space.run(plan), kind)
        return known

    def _edge(self, plan: Plan, shared: Key, stage: Stage) -> BlockMemory:
        """Return what the model's beginning and end hold, of the stage that has them."""
        key = (shared, stage.is_first, stage.is_last)
        known = self._edges.get(key)
        if known is None:
            known = self._edges[key] = edge_memory(self._space.run(plan), stage.is_first, stage.is_last)
        return known
