"""The pruned search of layouts returns what looking at every candidate returns."""

from __future__ import annotations

from math import inf
from typing import Any, NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from predictor.core.step.memory import GIB
from predictor.core.step.memory_verdict import MEMORY_ERROR
from predictor.core.workload.run_choices import Recompute
from predictor.layout_search.candidate import Plan
from predictor.layout_search.footprint import Footprints
from predictor.layout_search.lines import cells, plans
from predictor.layout_search.near_duplicates import Ranked
from predictor.layout_search.question import SearchProblem, SearchQuestion, search_problem
from predictor.layout_search.rank import fitting, rank
from predictor.layout_search.stages import Pipelines
from predictor.layout_search.timer import Timer
from tests.unit.layout_search.test_search import SMALL, SPARSE

TOP = 4


class Known(NamedTuple):
    """A candidate as an exhaustive search knows it."""

    memory_bytes: float
    step_us: float
    plan: Plan


@st.composite
def problems(draw: st.DrawFn) -> SearchProblem:
    """Return a small search problem."""
    model = dict(draw(st.sampled_from((SMALL, SPARSE))), num_layers=draw(st.integers(2, 6)))
    framework = draw(st.sampled_from((None, "megatron", "torchtitan", "deepspeed")))
    training: dict[str, Any] = {"precision": "bf16"}
    if framework is None:  # its switches are the configuration's
        model["loss"] = draw(st.sampled_from(("fused_linear", "fused")))
        training |= {"recompute": "full", "recompute_stops_early": draw(st.booleans())}
    parallelism = {
        "overlap_gradient_reduction": draw(st.booleans()),
        "overlap_tensor_parallel": draw(st.booleans()),
        "overlap_parameter_gather": draw(st.booleans()),
    }
    content = {"system": "H100", "model": model, "training": training, "parallelism": parallelism}
    gpus = draw(st.sampled_from((4, 6)))
    batch = gpus * draw(st.sampled_from((1, 2, 3)))
    return search_problem(SearchQuestion(content, gpus, global_batch_size=batch, framework=framework))


def everything(problem: SearchProblem) -> list[Known]:
    """Return every candidate of a problem, replayed, in the order of the space."""
    return _known(problem, list(plans(problem.space)))


def partly_recomputed(problem: SearchProblem, every: list[Known], certain: float) -> list[Known]:
    """Return the candidates of Megatron-LM that recompute as few layers of each chunk as fit, if not all."""
    rules = problem.space.rules
    if rules is None or not rules.recomputes_some:
        return []
    plain = {one.plan: one.memory_bytes for one in every}
    found = []
    for plan in [plan for plan, size in plain.items() if plan.recomputes_all and size <= certain]:
        chunks = problem.space.run(plan).chunk_layers
        partly = _known(problem, [plan._replace(recompute_layers=n) for n in range(1, max(map(max, chunks)))])
        fits = [one for one in partly if one.memory_bytes <= certain]
        found += fits[:1] if plain[plan._replace(recompute=Recompute.NONE)] > certain else []
    return found


def _known(problem: SearchProblem, candidates: list[Plan]) -> list[Known]:
    pipelines = Pipelines(problem.space)
    timer, footprints = Timer(problem.space, problem.system, pipelines), Footprints(problem.space, pipelines)
    return [Known(footprints.memory_bytes(plan), timer.step_us(plan), plan) for plan in candidates]


@given(problems(), st.floats(0.0, 1.0))
@settings(max_examples=25)
def test_pruning_loses_nothing(problem: SearchProblem, share: float) -> None:
    known = everything(problem)
    if not known:
        return
    sizes = sorted(one.memory_bytes for one in known)
    limit = sizes[int(share * (len(sizes) - 1))]
    certain = limit * (1.0 - MEMORY_ERROR)
    fits = [one for one in known if one.memory_bytes <= limit]
    sure = [one for one in fits if one.memory_bytes <= certain]
    fastest = sorted(
        (sure or fits) + partly_recomputed(problem, known, certain), key=lambda one: (one.step_us, one.memory_bytes)
    )[:TOP]  # stable: as the space orders
    answer = rank(problem.space, problem.system, limit / GIB, TOP)
    assert answer.best == [Ranked(one.step_us, one.memory_bytes, one.plan) for one in fastest]
    assert (answer.considered, answer.fitting) == (len(known), len(fits))
    unsure = [one.step_us for one in fits if sure and one.memory_bytes > certain and one.step_us < fastest[0].step_us]
    assert [one.step_us for one in answer.unsure[:1]] == sorted(unsure)[:1]


@given(problems())
@settings(max_examples=25)
def test_floors_and_bounds_are_no_longer_than_steps(problem: SearchProblem) -> None:
    space = problem.space
    pipelines = Pipelines(space)
    timer = Timer(space, problem.system, pipelines)
    for plan in plans(space):
        shared, floor, bound, step = (
            timer.shared_floor_us(plan), timer.floor_us(plan), timer.bound_us(plan), timer.step_us(plan),
        )  # fmt: skip
        assert shared <= floor * (1.0 + 1e-9), plan
        assert floor <= step, plan
        assert bound <= step * (1.0 + 1e-9), plan


@given(problems())
@settings(max_examples=15)
def test_candidates_with_a_shared_floor_have_it(problem: SearchProblem) -> None:
    pipelines = Pipelines(problem.space)
    timer, footprints = Timer(problem.space, problem.system, pipelines), Footprints(problem.space, pipelines)
    found: dict[object, float] = {}
    for line, numbers in fitting(list(cells(problem.space)), footprints, inf, inf)[0]:
        for number in numbers:
            plan = line.plan(number)
            floor = timer.shared_floor_us(plan)
            key = timer.shared_floor_key(plan), plan.micro_batch_size
            assert found.setdefault(key, floor) == floor, plan
