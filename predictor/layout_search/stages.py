"""The runs of a search's candidates and the distinct stages of their pipelines, cached."""

from __future__ import annotations

from predictor.core.workload.pipeline import Pipeline, pipeline
from predictor.core.workload.run import TrainingRun
from predictor.layout_search.space import Plan, Space

Key = tuple[object, ...]
# Sums of the same numbers in another order.
ROUNDING = 1e-9


class Pipelines:
    """The distinct stages of every pipeline of a space."""

    def __init__(self, space: Space) -> None:
        """Prepare for a space."""
        self._space = space
        self._pipelines: dict[tuple[int, int], Pipeline] = {}
        self._latest: tuple[Plan, TrainingRun] | None = None

    def run(self, plan: Plan) -> TrainingRun:
        """Return a candidate as a run; the latest is kept, since its parts are asked for one after the other."""
        if self._latest is None or self._latest[0] != plan:
            self._latest = plan, self._space.run(plan)
        return self._latest[1]

    def of(self, plan: Plan) -> Pipeline:
        """Return the distinct stages of a candidate."""
        key = plan.degrees.pipeline, plan.num_chunks
        known = self._pipelines.get(key)
        if known is None:
            known = self._pipelines[key] = pipeline(self.run(plan))
        return known


def shared_key(plan: Plan) -> Key:
    """Return the choices that a model chunk depends on; sharded gradients and weights depend on replicas too."""
    degrees = plan.degrees
    shares = (plan.zero_stage, degrees) if plan.zero_stage >= 2 else (degrees.expert, degrees.expert_split)
    return degrees.tensor, degrees.context, plan.sequence_parallel, plan.micro_batch_size, shares
