"""The memory of a candidate as a plain number: every part is computed once and shared by all that have it.

The numbers are those of ``stage_memory``; a test holds them to each other.
"""

from __future__ import annotations

from typing import NamedTuple

from predictor.search.space import Plan, Space
from predictor.search.stages import Key, Pipelines, shared_key
from predictor.step.activations import (
    deferred_head_bytes,
    embedding_bytes,
    gathered_edge_bytes,
    head_bytes,
    held_heads,
    kept_bytes,
    working_bytes,
)
from predictor.step.memory import allowance_bytes, buffer_bytes, held_bytes, state_bytes
from predictor.timeline.schedules import SCHEDULES, peak_in_flight
from predictor.workloads.pipeline import Stage
from predictor.workloads.transformer import LayerKind


class Held(NamedTuple):
    """Bytes of one stage that do not depend on the schedule: kept per micro-batch, in the embedding; and at work."""

    kept: float
    embedding: float
    working: float


class Edges(NamedTuple):
    """Bytes of the model's ends: what the embedding and the last stage keep of a micro-batch, what ZeRO-3 gathers."""

    embedding: float
    head: float
    deferred: float
    gathered: float


def _held(stage: Stage, layers: dict[LayerKind, tuple[float, float]], edges: Edges) -> Held:
    """Return the bytes of one stage from those of its layers, and of the model's ends; the last stage's head aside."""
    at_edge = stage.is_first or stage.is_last
    return Held(
        kept=sum([layers[kind][0] * count for kind, count in stage.layers]),
        embedding=edges.embedding if stage.is_first else 0.0,
        working=max([layers[kind][1] for kind, _ in stage.layers]) + (edges.gathered if at_edge else 0.0),
    )


class Footprints:
    """Sizes the candidates of one search: lists over the distinct stages of a pipeline."""

    def __init__(self, space: Space, pipelines: Pipelines) -> None:
        """Prepare for a space."""
        self._space = space
        self._pipelines = pipelines
        self._flights: dict[Key, list[int]] = {}
        self._states: dict[Key, list[float]] = {}
        self._held: dict[Key, list[Held]] = {}
        self._bytes: dict[Key, tuple[float, float]] = {}
        self._edges: dict[Key, Edges] = {}

    def memory_bytes(self, plan: Plan) -> float:
        """Return what the fullest GPU of a candidate needs."""
        tensors = 0.0
        flights, helds = self._in_flight(plan), self._stage_held(plan)
        stages = self._pipelines.of(plan).distinct
        for stage, state, in_flight, held in zip(stages, self._stage_states(plan), flights, helds, strict=True):
            needed = state + held_bytes(in_flight, plan.num_chunks, held.kept, held.embedding) + held.working
            if stage.is_last:
                needed += self._head(plan)
            if needed > tensors:
                tensors = needed
        return tensors + allowance_bytes(tensors)

    def _in_flight(self, plan: Plan) -> list[int]:
        """Return how many micro-batches' chunks every distinct stage holds."""
        stages, count = plan.degrees.pipeline, plan.num_micro_batches
        key = (plan.schedule, stages, count, plan.num_chunks)
        found = self._flights.get(key)
        if found is None:
            schedule = SCHEDULES[plan.schedule]
            found = self._flights[key] = [
                peak_in_flight(schedule, stage.earliest, stages, count, plan.num_chunks)
                for stage in self._pipelines.of(plan).distinct
            ]
        return found

    def _stage_states(self, plan: Plan) -> list[float]:
        """Return bytes of states and gradient buffers of every distinct stage."""
        key = (plan.degrees, plan.zero_stage, plan.num_chunks)
        found = self._states.get(key)
        if found is None:
            run = self._space.run(plan)
            found = self._states[key] = [
                sum(state_bytes(run, stage.earliest)) + buffer_bytes(run, stage.earliest)
                for stage in self._pipelines.of(plan).distinct
            ]
        return found

    def _stage_held(self, plan: Plan) -> list[Held]:
        """Return bytes of activations of every distinct stage."""
        shared = shared_key(plan), plan.recompute
        key = (shared, plan.degrees.pipeline, plan.num_chunks)
        found = self._held.get(key)
        if found is None:
            stages = self._pipelines.of(plan)
            layers = {kind: self._layer_bytes(plan, shared, kind) for kind in stages.kinds}
            edges = self._edge_bytes(plan, shared)
            found = self._held[key] = [_held(stage, layers, edges) for stage in stages.distinct]
        return found

    def _layer_bytes(self, plan: Plan, shared: Key, kind: LayerKind) -> tuple[float, float]:
        """Return bytes that a layer keeps, and those that exist while it is computed."""
        found = self._bytes.get((shared, kind))
        if found is None:
            run = self._space.run(plan)
            found = self._bytes[shared, kind] = kept_bytes(run, kind), working_bytes(run, [kind])
        return found

    def _head(self, plan: Plan) -> float:
        """Return what the last stage holds of the model's end."""
        schedule, stages = SCHEDULES[plan.schedule], plan.degrees.pipeline
        in_flight = peak_in_flight(schedule, stages - 1, stages, plan.num_micro_batches, 1)
        edges = self._edge_bytes(plan, (shared_key(plan), plan.recompute))
        return held_heads(schedule, in_flight, edges.head, edges.deferred)

    def _edge_bytes(self, plan: Plan, shared: Key) -> Edges:
        """Return bytes of the model's ends."""
        found = self._edges.get(shared)
        if found is None:
            run = self._space.run(plan)
            found = self._edges[shared] = Edges(
                embedding_bytes(run), head_bytes(run), deferred_head_bytes(run), gathered_edge_bytes(run)
            )
        return found
