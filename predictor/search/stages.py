"""The distinct stages of every pipeline in a search, cached."""

from __future__ import annotations

from predictor.search.space import Plan, Space
from predictor.workloads.pipeline import Pipeline, pipeline

Key = tuple[object, ...]


class Pipelines:
    """The distinct stages of every pipeline of a space."""

    def __init__(self, space: Space) -> None:
        """Prepare for a space."""
        self._space = space
        self._pipelines: dict[tuple[int, int], Pipeline] = {}

    def of(self, plan: Plan) -> Pipeline:
        """Return the distinct stages of a candidate."""
        key = plan.degrees.pipeline, plan.num_chunks
        known = self._pipelines.get(key)
        if known is None:
            known = self._pipelines[key] = pipeline(self._space.run(plan))
        return known


def shared_key(plan: Plan) -> Key:
    """Return the choices that a model chunk depends on; sharded gradients and weights depend on replicas too."""
    degrees = plan.degrees
    shares = (plan.zero_stage, degrees) if plan.zero_stage >= 2 else degrees.expert
    return degrees.tensor, degrees.context, plan.sequence_parallel, plan.micro_batch_size, shares
