"""The bound on a step's time against its replay: never above, equal for uniform stages, close where the ends differ."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from predictor.core.timeline.bound import WITH_PATHS, lower_bound
from predictor.core.timeline.schedules import IN_GROUPS, SCHEDULES
from tests.property.test_schedules import SAME, Case, Sizes, any_sizes, cases

UNIFORM = st.floats(0.01, 10.0)


def step(case: Case, ends: list[float], closing: float = 0.0) -> float:
    """Return a step's time from its replay."""
    finished = case.replayed().finished
    return closing + max(t + end for t, end in zip(finished, ends, strict=True))


def bound(case: Case, ends: list[float], closing: float = 0.0) -> float:
    """Return the bound on it."""
    name, _, micro_batches, _, blocking = case.sizes
    return lower_bound(name, micro_batches, *case[1:], blocking, ends, closing)


def uniform(sizes: Sizes, forward: float, backward: float, weight: float, transfer: float) -> Case:
    """Return a case whose stages are all alike."""
    stages, chunks = sizes.stages, sizes.chunks
    split = [[weight] * chunks] * stages if SCHEDULES[sizes.name].splits_backward else []
    return Case(sizes, [[forward] * chunks] * stages, [[backward] * chunks] * stages, split, transfer)


@settings(max_examples=500)
@given(cases(), st.data())
def test_no_step_is_shorter_than_its_bound(case: Case, data: st.DataObject) -> None:
    one_end = st.floats(0.0, 100.0)
    ends = data.draw(st.lists(one_end, min_size=case.sizes.stages, max_size=case.sizes.stages))
    closing = data.draw(one_end)
    found = step(case, ends, closing)
    assert bound(case, ends, closing) <= found * (1 + SAME) + SAME


@settings(max_examples=500)
@given(any_sizes(), UNIFORM, UNIFORM, UNIFORM, st.floats(0.0, 20.0), st.floats(0.0, 5.0))
def test_uniform_stages_take_their_bound(
    sizes: Sizes, forward: float, backward: float, weight: float, transfer: float, end: float
) -> None:
    if sizes.name.startswith(IN_GROUPS) or sizes.name == "looped_bfs":
        fullest = sizes.micro_batches * sizes.chunks * (forward + backward)
        case = uniform(sizes, forward, backward, weight, 0.0)
        assert fullest + end <= bound(case, [end] * sizes.stages) * (1 + SAME)
        return
    if sizes.name == "interleaved_1f1b":
        transfer = min(transfer, forward, backward)
    elif sizes.name == "zero_bubble_h1":
        transfer = min(transfer, weight / 2)
    elif SCHEDULES[sizes.name].v_shaped:
        if sizes.micro_batches < 2 * sizes.stages or sizes.name == "dualpipe_v":
            return
        # Equal passes without messages: no stage of ZB-V waits once it has begun.
        transfer, backward, weight = 0.0, forward, forward
    case, ends = uniform(sizes, forward, backward, weight, transfer), [end] * sizes.stages
    assert math.isclose(bound(case, ends), step(case, ends), rel_tol=SAME)
    # A last bit on one stage makes the stages differ: the general bound is equal too.
    uneven = [end, *[end * (1 + 1e-12) + 1e-300] * (sizes.stages - 1)]
    assert math.isclose(bound(case, uneven), step(case, uneven), rel_tol=SAME)


@given(cases())
def test_all_forward_all_backward_has_an_exact_bound_without_blocking(case: Case) -> None:
    sizes = case.sizes._replace(name="all_forward_all_backward", blocking=False)
    if sizes.chunks > 1:
        return
    exact = case._replace(sizes=sizes, weight=[])
    ends = [float(10 * stage) for stage in range(sizes.stages)]
    assert math.isclose(bound(exact, ends), step(exact, ends), rel_tol=SAME)


@settings(max_examples=300)
@given(any_sizes(), st.data())
def test_the_bound_is_close_where_only_the_ends_of_the_pipeline_differ(sizes: Sizes, data: st.DataObject) -> None:
    """The embedding on the first stage, the head on the last, messages of a few percent of a slot."""
    # Both ends of a V are on the first stage. No bound but the fullest stage's work, nor of groups of micro-batches.
    if sizes.name not in WITH_PATHS:
        return
    layers = data.draw(st.integers(1, 8))
    forward = float(layers)
    backward, weight = (forward, 0.9 * forward) if SCHEDULES[sizes.name].splits_backward else (2 * forward, 0.0)
    case = uniform(sizes, forward, backward, weight, data.draw(st.floats(0.0, 0.03)) * forward)
    embedding, head = data.draw(st.floats(0.0, 0.2)), data.draw(st.floats(0.0, 2.0))
    for durations, factor in ((case.forward, 1.0), (case.backward, backward / forward), (case.weight, 1.0)):
        if durations:
            durations[0] = [durations[0][0] + factor * embedding, *durations[0][1:]]
            durations[-1] = [*durations[-1][:-1], durations[-1][-1] + factor * head]
    ends = data.draw(st.lists(st.floats(0.5, 1.0), min_size=sizes.stages, max_size=sizes.stages))
    assert bound(case, ends) >= 0.99 * step(case, ends)


@given(cases())
def test_a_longer_end_never_lowers_the_bound(case: Case) -> None:
    stages = case.sizes.stages
    ends = [1.0] * stages
    before = bound(case, ends)
    for stage in range(stages):
        longer = [one + 50.0 * (i == stage) for i, one in enumerate(ends)]
        assert bound(case, longer) >= before * (1 - SAME)
