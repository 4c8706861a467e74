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
        self._found: dict[tuple[int, int], Pipeline] = {}

    def of(self, plan: Plan) -> Pipeline:
        """Return the distinct stages of a candidate."""
        key = plan.degrees.pipeline, plan.num_chunks
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = pipeline(self._space.run(plan))
        return found


def shared_key(plan: Plan) -> Key:
    """Return what a model chunk depends on; sharing out gradients and weights makes it depend on replicas."""
    degrees = plan.degrees
    shares = (plan.zero_stage, degrees) if plan.zero_stage >= 2 else degrees.expert
    return degrees.tensor, degrees.context, plan.sequence_parallel, plan.micro_batch_size, shares
