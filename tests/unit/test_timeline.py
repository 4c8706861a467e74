"""Schedules against their papers' counts, and the replay against hand-worked timelines."""

from __future__ import annotations

import pytest

from predictor.timeline.replay import Kind, replay, stage_program
from predictor.timeline.schedules import SCHEDULES, Slot, all_forward_all_backward, one_forward_one_backward


def test_1f1b_holds_no_more_activations_than_stages() -> None:
    for stage in range(4):
        held = peak = 0
        for is_forward, _ in one_forward_one_backward(stage, 4, 8):
            held += 1 if is_forward else -1
            peak = max(peak, held)
        assert peak == 4 - stage


def test_afab_holds_all_activations() -> None:
    slots = all_forward_all_backward(0, 4, 3)
    assert slots == [Slot(True, 0), Slot(True, 1), Slot(True, 2), Slot(False, 2), Slot(False, 1), Slot(False, 0)]


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
def test_every_micro_batch_runs_forward_and_backward_once(schedule) -> None:  # type: ignore[no-untyped-def]
    for stage in range(5):
        slots = schedule(stage, 5, 7)
        assert sorted(i for is_forward, i in slots if is_forward) == list(range(7))
        assert sorted(i for is_forward, i in slots if not is_forward) == list(range(7))


def test_two_stages_one_micro_batch_wait_for_both_messages() -> None:
    # forward 1, message 0.5, forward 1, backward 2, message 0.5, backward 2
    result = replay(one_forward_one_backward, 1, [1, 1], [2, 2], 0.5)
    assert result.finished == [7.0, 5.0]
    assert result.busy == [3, 3]
    assert result.communicating == [1.0, 1.0]


def test_sender_goes_on_when_messages_do_not_block() -> None:
    # Stage 1 ends its forwards at 3.5 and its backwards at 4.5 and 5.5; their gradients arrive half a unit later.
    result = replay(all_forward_all_backward, 2, [1, 1], [1, 1], 0.5, blocking=False)
    assert result.makespan == 7.0
    assert replay(all_forward_all_backward, 2, [1, 1], [1, 1], 0.5).makespan > result.makespan


def test_steady_state_receives_the_gradient_before_it_sends_the_activation() -> None:
    program = stage_program(one_forward_one_backward(0, 2, 3), 0, 2)
    steady = program.index((Kind.COMPUTE, True, 1)) + 1
    assert program[steady : steady + 3] == [(Kind.RECEIVE, False, 0), (Kind.SEND, True, 1), (Kind.COMPUTE, False, 0)]


def test_one_stage_sends_nothing() -> None:
    result = replay(one_forward_one_backward, 5, [1], [2], 100.0)
    assert result.makespan == 15
    assert result.communicating == [0.0]


def test_slowest_stage_sets_the_period() -> None:
    # Eight micro-batches through a stage of 6: at least 48, plus filling from the other three.
    result = replay(one_forward_one_backward, 8, [1, 1, 2, 1], [2, 2, 4, 2], 0.0)
    assert 48 < result.makespan <= 48 + 3 * 6
