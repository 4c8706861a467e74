"""Schedules and their replay, for any number of stages and micro-batches."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from predictor.timeline.replay import Kind, replay, stage_program
from predictor.timeline.schedules import SCHEDULES, Slot

STAGES = st.integers(1, 9)
MICRO_BATCHES = st.integers(1, 12)
NAMES = st.sampled_from(sorted(SCHEDULES))
DURATION = st.floats(0.0, 100.0)
# Instructions of one kind add up in any order: relative, not exact.
SAME = 1e-9


@given(NAMES, STAGES, MICRO_BATCHES, st.floats(0.1, 10.0), st.floats(0.1, 10.0), st.booleans())
def test_uniform_stages_take_the_closed_formula(
    name: str, stages: int, micro_batches: int, forward: float, backward: float, blocking: bool
) -> None:
    """(m + p − 1)(f + b): Narayanan et al. 2021, arXiv:2104.04473, section 2.2."""
    found = replay(SCHEDULES[name], micro_batches, [forward] * stages, [backward] * stages, 0.0, blocking)
    assert math.isclose(found.makespan, (micro_batches + stages - 1) * (forward + backward), rel_tol=SAME)
    for busy in found.busy:
        assert math.isclose(busy, micro_batches * (forward + backward), rel_tol=SAME)


@st.composite
def timelines(draw: st.DrawFn) -> tuple[str, int, list[float], list[float], float, bool]:
    """Draw any schedule with any durations."""
    stages = draw(STAGES)
    durations = st.lists(DURATION, min_size=stages, max_size=stages)
    return draw(NAMES), draw(MICRO_BATCHES), draw(durations), draw(durations), draw(DURATION), draw(st.booleans())


@given(timelines())
def test_replay_never_deadlocks_and_never_beats_its_work(
    timeline: tuple[str, int, list[float], list[float], float, bool],
) -> None:
    name, micro_batches, forward, backward, transfer, blocking = timeline
    found = replay(SCHEDULES[name], micro_batches, forward, backward, transfer, blocking)
    for stage, (f, b) in enumerate(zip(forward, backward, strict=True)):
        work = micro_batches * (f + b)
        assert math.isclose(found.busy[stage], work, rel_tol=SAME, abs_tol=SAME)
        needed = found.busy[stage] + found.communicating[stage]
        assert found.finished[stage] >= needed * (1 - SAME)
    longest_path = sum(forward) + sum(backward) + 2 * (len(forward) - 1) * transfer
    assert found.makespan >= longest_path * (1 - SAME)


@given(timelines(), st.data())
def test_more_work_is_never_faster(
    timeline: tuple[str, int, list[float], list[float], float, bool], data: st.DataObject
) -> None:
    name, micro_batches, forward, backward, transfer, blocking = timeline
    before = replay(SCHEDULES[name], micro_batches, forward, backward, transfer, blocking).makespan
    stage = data.draw(st.integers(0, len(forward) - 1))
    more = data.draw(DURATION)
    slower_forward = [f + more * (i == stage) for i, f in enumerate(forward)]
    slower_backward = [b + more * (i == stage) for i, b in enumerate(backward)]
    for arguments in (
        (micro_batches, slower_forward, backward, transfer),
        (micro_batches, forward, slower_backward, transfer),
        (micro_batches, forward, backward, transfer + more),
        (micro_batches + 1, forward, backward, transfer),
    ):
        after = replay(SCHEDULES[name], *arguments, blocking).makespan
        assert after >= before * (1 - SAME)


@given(NAMES, STAGES, MICRO_BATCHES)
def test_every_slot_and_message_happens_once(name: str, stages: int, micro_batches: int) -> None:
    sent: list[tuple[int, bool, int]] = []
    received: list[tuple[int, bool, int]] = []
    for stage in range(stages):
        slots = SCHEDULES[name](stage, stages, micro_batches)
        expected = {(forward, i) for forward in (True, False) for i in range(micro_batches)}
        assert {tuple(slot) for slot in slots} == expected
        assert len(slots) == len(expected)
        for i in range(micro_batches):
            assert slots.index(Slot(True, i)) < slots.index(Slot(False, i))
        for kind, forward, i in stage_program(slots, stage, stages):
            if kind is Kind.SEND:
                sent.append((stage if forward else stage - 1, forward, i))
            elif kind is Kind.RECEIVE:
                received.append((stage - 1 if forward else stage, forward, i))
    assert sorted(sent) == sorted(received)
    assert len(sent) == 2 * micro_batches * (stages - 1)
