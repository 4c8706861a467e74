"""The runs of a search's candidates and the distinct stages of their pipelines, cached."""

from __future__ import annotations

from predictor.core.workload.pipeline import Kinds, Pipeline, pipeline
from predictor.core.workload.run import TrainingRun
from predictor.core.workload.run_choices import Recompute
from predictor.core.workload.transformer import LayerKind
from predictor.layout_search.candidate import Plan
from predictor.layout_search.space import Space

Key = tuple[object, ...]
# Sums of the same numbers in another order.
ROUNDING = 1e-9


class Pipelines:
    """The distinct stages of every pipeline of a space."""

    def __init__(self, space: Space) -> None:
        """Prepare for a space."""
        self._space = space
        self._pipelines: dict[Key, Pipeline] = {}
        self._held: dict[Key, int] = {}
        self._numbers: dict[Key, int] = {}
        self._latest: tuple[Plan, TrainingRun] | None = None

    def run(self, plan: Plan) -> TrainingRun:
        """Return a candidate as a run; the latest is kept, since its parts are asked for one after the other."""
        if self._latest is None or self._latest[0] != plan:
            self._latest = plan, self._space.run(plan)
        return self._latest[1]

    def of(self, plan: Plan) -> Pipeline:
        """Return the distinct stages of a candidate."""
        key = plan.degrees.pipeline, plan.chunks
        known = self._pipelines.get(key)
        if known is None:
            known = self._pipelines[key] = pipeline(self.run(plan))
        return known

    def held(self, plan: Plan) -> int:
        """Return a number of the layers that stages hold; candidates that differ in chunks alone share it."""
        key = plan.degrees.pipeline, plan.chunks
        known = self._held.get(key)
        if known is None:
            stages = tuple((each.earliest, each.layers, each.is_first, each.is_last) for each in self.of(plan).distinct)
            known = self._held[key] = self._numbers.setdefault(stages, len(self._numbers))
        return known


def shared_key(plan: Plan) -> Key:
    """Return the choices that a model chunk depends on; sharded gradients and weights depend on replicas too."""
    degrees = plan.degrees
    shares: Key = plan.sharing if plan.zero_stage >= 2 else (degrees.expert, degrees.expert_split)
    return degrees.tensor, degrees.context, plan.sequence_parallel, plan.micro_batch_size, shares


def alike_layers(plan: Plan) -> tuple[Plan, Plan]:
    """Return candidates whose layers are all as those that a candidate computes again, and as its others."""
    if plan.recompute_layers is None:
        return plan, plan
    again = plan._replace(recompute_layers=None)
    return again, again._replace(recompute=Recompute.NONE)


def parted(plan: Plan, layers: Kinds) -> list[tuple[LayerKind, int, bool]]:
    """Return a chunk's layers by kind, each with whether the candidate's recomputation applies; its first ones are."""
    left = plan.recompute_layers
    if left is None:
        return [(kind, count, True) for kind, count in layers]
    found = []
    for kind, count in layers:
        again = min(left, count)
        left -= again
        found += [(kind, again, True)] if again else []
        found += [(kind, count - again, False)] if count > again else []
    return found
