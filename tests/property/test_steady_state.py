"""The replay of a long step skips rounds that repeat, and finds what a replay of every slot finds."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor.core.timeline import replay as replaying
from predictor.core.timeline.replay import replay
from predictor.core.timeline.rounds import waiting_order
from predictor.core.timeline.schedules import SCHEDULES, Schedule
from tests.property.test_schedules import SAME, Case, Sizes

STEADY = ("1f1b", "interleaved_1f1b", "zero_bubble_h1", "zbv", "dualpipe_v")
SLOT_BY_SLOT = {name: replace(SCHEDULES[name], has_steady_state=False) for name in STEADY}


@st.composite
def long_steps(draw: st.DrawFn) -> Case:
    """Draw steps of many micro-batches: stages alike, nearly alike or of any durations."""
    name = draw(st.sampled_from(STEADY))
    if name == "interleaved_1f1b":
        stages, chunks = draw(st.integers(2, 5)), draw(st.integers(2, 3))
        micro_batches = stages * draw(st.integers(15, 60))
    elif SCHEDULES[name].v_shaped:
        stages, chunks = draw(st.integers(2, 5)), 2
        micro_batches = draw(st.integers(50, 300))
    else:
        stages, chunks = draw(st.integers(1, 6)), 1
        micro_batches = draw(st.integers(50, 300))
    whole, spread = draw(st.floats(0.1, 10.0)), draw(st.sampled_from((0.0, 1e-6, 0.02, 1.0)))
    one = st.floats(0.0, 1.0).map(lambda share: whole * (1.0 - spread * share))
    durations = st.lists(st.lists(one, min_size=chunks, max_size=chunks), min_size=stages, max_size=stages)
    weight = draw(durations) if SCHEDULES[name].splits_backward else []
    transfer = draw(st.sampled_from((0.0, 0.01, 0.3, 2.0))) * whole
    sizes = Sizes(name, stages, micro_batches, chunks, False)
    return Case(sizes, draw(durations), draw(durations), weight, transfer)


def every_event(schedule: Schedule, case: Case) -> list[tuple[int, int, int]]:
    """Return an order's events, repeated ones as often as they come; each with its sender's place among all."""
    order = waiting_order(schedule, *case.sizes[1:4])
    events = [event for one, times in order.rounds for _ in range(times) for event in one]
    return [(stage, which, at + back if back else -1) for at, (stage, which, back) in enumerate(events)]


@settings(max_examples=60)
@given(long_steps())
def test_repeated_rounds_are_every_slot(case: Case) -> None:
    """The same slots stage by stage, each after the same slot of another stage; only their interleaving is free."""
    repeated, all_of_them = (
        every_event(one, case) for one in (SCHEDULES[case.sizes.name], SLOT_BY_SLOT[case.sizes.name])
    )

    def by_stage(events: list[tuple[int, int, int]]) -> list[list[tuple[int, tuple[int, int] | None]]]:
        slots: list[list[tuple[int, tuple[int, int] | None]]] = [[] for _ in range(case.sizes.stages)]
        places = []
        for stage, which, sender in events:
            places.append((stage, len(slots[stage])))
            slots[stage].append((which, places[sender] if sender >= 0 else None))
        return slots

    assert by_stage(repeated) == by_stage(all_of_them)


@settings(max_examples=200)
@given(long_steps())
def test_skipping_rounds_changes_no_time(case: Case) -> None:
    name, _, micro_batches, _, _ = case.sizes
    found = case.replayed()
    expected = replay(SLOT_BY_SLOT[name], micro_batches, *case[1:], False)
    for one, other in zip(found.finished, expected.finished, strict=True):
        assert math.isclose(one, other, rel_tol=SAME)
    assert found.busy == pytest.approx(expected.busy, rel=SAME)


@pytest.mark.parametrize("name", STEADY)
def test_most_rounds_of_a_long_step_are_skipped(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stages alike but for the last one, which is the slowest."""
    stages, chunks = 4, 2 if SCHEDULES[name].chunks else 1
    forward, backward = ([[one] * chunks for _ in range(stages)] for one in (1.0, 2.0))
    forward[-1][-1] += 0.25
    weight = [[1.0] * chunks] * stages if SCHEDULES[name].splits_backward else []
    slots = 0
    run = replaying._run

    def counted(events: list[object], *rest: object) -> None:
        nonlocal slots
        slots += len(events)
        run(events, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(replaying, "_run", counted)
    found = replay(SCHEDULES[name], 4000, forward, backward, weight, 0.1, blocking=False)
    assert slots < 0.05 * 4000 * stages * chunks * len(SCHEDULES[name].passes)
    monkeypatch.undo()
    expected = replay(SLOT_BY_SLOT[name], 4000, forward, backward, weight, 0.1, blocking=False)
    assert found.makespan == pytest.approx(expected.makespan, rel=SAME)


def test_a_schedule_that_does_not_repeat_is_replayed_slot_by_slot() -> None:
    """What a schedule says of itself is checked."""
    claimed = replace(SCHEDULES["all_forward_all_backward"], has_steady_state=True)
    order = waiting_order(claimed, 4, 400, 1)
    assert sum(len(one) * times for one, times in order.rounds) == 2 * 4 * 400
    durations = [[1.0], [2.0], [1.5], [1.0]]
    found = replay(claimed, 400, durations, durations, [], 0.5, blocking=False)
    assert found == replay(SCHEDULES["all_forward_all_backward"], 400, durations, durations, [], 0.5, blocking=False)
