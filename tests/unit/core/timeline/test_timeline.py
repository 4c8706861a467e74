"""Schedules against their papers' orders and counts, and the replay against hand-worked timelines."""

from __future__ import annotations

import pytest

from predictor.core.timeline.allowed_sizes import check
from predictor.core.timeline.in_flight import peak_in_flight
from predictor.core.timeline.order import Kind, meeting_order, stage_program
from predictor.core.timeline.replay import replay
from predictor.core.timeline.rounds import waiting_order
from predictor.core.timeline.schedules import (
    BACKWARD,
    FORWARD,
    SCHEDULES,
    WEIGHT,
    Schedule,
    Slot,
    SlotOrder,
    interleaved_1f1b,
    one_forward_one_backward,
    zero_bubble_h1,
)

ONE_F_ONE_B, AFAB = SCHEDULES["1f1b"], SCHEDULES["all_forward_all_backward"]
INTERLEAVED, ZERO_BUBBLE = SCHEDULES["interleaved_1f1b"], SCHEDULES["zero_bubble_h1"]
PASSES = {"F": FORWARD, "B": BACKWARD, "W": WEIGHT}


def written(text: str) -> list[Slot]:
    """Read slots as papers draw them: pass, micro-batch, and a dot and the chunk where there are several."""
    slots = []
    for word in text.split():
        micro_batch, _, chunk = word[1:].partition(".")
        slots.append(Slot(PASSES[word[0]], int(micro_batch), int(chunk or 0)))
    return slots


def test_afab_runs_its_backwards_in_reverse() -> None:
    assert AFAB.order(0, 4, 3, 1) == written("F0 F1 F2 B2 B1 B0")


def test_1f1b_equals_its_paper() -> None:
    """Narayanan et al. 2021, figure 4 top: the second of four devices."""
    assert one_forward_one_backward(1, 4, 5) == written("F0 F1 F2 B0 F3 B1 F4 B2 B3 B4")


def test_interleaved_1f1b_equals_that_of_megatron() -> None:
    """Two stages of two chunks: warm-ups of (p − s − 1)·2 + (v − 1)·p, the last chunk's backwards first."""
    first = "F0.0 F1.0 F0.1 F1.1 F2.0 B0.1 F3.0 B1.1 F2.1 B0.0 F3.1 B1.0 B2.1 B3.1 B2.0 B3.0"
    last = "F0.0 F1.0 F0.1 B0.1 F1.1 B1.1 F2.0 B0.0 F3.0 B1.0 F2.1 B2.1 F3.1 B3.1 B2.0 B3.0"
    assert interleaved_1f1b(0, 2, 4, 2) == written(first)
    assert interleaved_1f1b(1, 2, 4, 2) == written(last)


def test_zero_bubble_h1_equals_its_paper() -> None:
    """Qi et al. 2023, figure 3: the first and the last of four devices."""
    first = zero_bubble_h1(0, 4, 6)
    assert first == written("F0 F1 F2 F3 B0 W0 F4 B1 W1 F5 B2 W2 B3 W3 B4 W4 B5 W5")
    last = zero_bubble_h1(3, 4, 6)
    assert last == written("F0 B0 F1 B1 F2 B2 F3 B3 W0 F4 B4 W1 F5 B5 W2 W3 W4 W5")


def test_schedules_hold_what_their_papers_say() -> None:
    stages, count = 4, 8
    for stage in range(stages):
        sizes = (stage, stages, count)
        assert peak_in_flight(ONE_F_ONE_B, *sizes, 1) == stages - stage
        assert peak_in_flight(AFAB, *sizes, 1) == count
        assert peak_in_flight(INTERLEAVED, *sizes, 2) == (stages - stage - 1) * 2 + stages + 1
        assert peak_in_flight(ZERO_BUBBLE, *sizes, 1) == stages


@pytest.mark.parametrize(
    ("name", "sizes", "rule"),
    [
        ("1f1b", (4, 8, 2), "holds one model chunk per stage; interleaved_1f1b takes several"),
        ("zero_bubble_h1", (4, 8, 2), "holds one model chunk per stage; interleaved_1f1b takes several"),
        ("interleaved_1f1b", (4, 8, 1), "needs at least 2 model chunks per stage; with one it is 1f1b"),
        ("interleaved_1f1b", (1, 8, 2), "needs at least 2 pipeline stages"),
        (
            "interleaved_1f1b",
            (4, 9, 2),
            "needs a multiple of pipeline_parallel_size (4) micro-batches. Try 8 or 12",
        ),
        (
            "interleaved_1f1b/5",
            (4, 13, 2),
            (
                "has 3 of 13 micro-batches in its last group of 5 (micro_batch_group_size); it must have none, "
                "or at least pipeline_parallel_size, 4"
            ),
        ),
        (
            "interleaved_1f1b/3",
            (4, 12, 2),
            (
                "runs micro_batch_group_size 3; it must be between pipeline_parallel_size, 4, "
                "and the micro-batches of a step, 12"
            ),
        ),
        ("interleaved_1f1b", (4, 3, 2), "needs a multiple of pipeline_parallel_size (4) micro-batches. Try 4"),
    ],
)
def test_sizes_that_break_a_rule_name_it(name: str, sizes: tuple[int, int, int], rule: str) -> None:
    assert check(name, *sizes) == rule


def test_sizes_that_break_no_rule_have_none() -> None:
    assert check("interleaved_1f1b", 4, 8, 2) is None
    for name in ("1f1b", "all_forward_all_backward", "zero_bubble_h1"):
        assert check(name, 1, 1, 1) is None


def test_two_stages_one_micro_batch_wait_for_both_messages() -> None:
    # forward 1, message 0.5, forward 1, backward 2, message 0.5, backward 2
    result = replay(ONE_F_ONE_B, 1, [[1], [1]], [[2], [2]], [], 0.5)
    assert result.finished == [7.0, 5.0]
    assert result.busy == [3, 3]
    assert result.communicating == [1.0, 1.0]


def test_sender_goes_on_when_messages_do_not_block() -> None:
    # Stage 1 ends its forwards at 3.5 and its backwards at 4.5 and 5.5; their gradients arrive half a unit later.
    result = replay(AFAB, 2, [[1], [1]], [[1], [1]], [], 0.5, blocking=False)
    assert result.makespan == 7.0
    assert replay(AFAB, 2, [[1], [1]], [[1], [1]], [], 0.5).makespan > result.makespan


def test_an_activation_leaves_as_soon_as_it_is_made_when_messages_do_not_block() -> None:
    # Stage 0 makes activation 2 at 2 and then waits for gradient 1 until 8; stage 1 has the activation long before.
    result = replay(ONE_F_ONE_B, 2, [[1], [1]], [[1], [5]], [], 1.0, blocking=False)
    assert result.finished == [16.0, 14.0]  # stage 1: 2–3 forward, 3–8 backward, 8–9, 9–14; its gradient takes 1


def test_steady_state_receives_the_gradient_before_it_sends_the_activation() -> None:
    program = stage_program(one_forward_one_backward(0, 2, 3), 0, 2)
    steady = program.index((Kind.COMPUTE, FORWARD, 1)) + 1
    expected = [(Kind.RECEIVE, BACKWARD, 0), (Kind.SEND, FORWARD, 1), (Kind.COMPUTE, BACKWARD, 0)]
    assert program[steady : steady + 3] == expected


def test_one_stage_sends_nothing() -> None:
    for name, blocking in (("1f1b", True), ("1f1b", False), ("all_forward_all_backward", True)):
        result = replay(SCHEDULES[name], 5, [[1]], [[2]], [], 100.0, blocking)
        assert result.makespan == 15
        assert result.communicating == [0.0]
    assert replay(ZERO_BUBBLE, 5, [[1]], [[1]], [[1]], 100.0, blocking=False).makespan == 15


def test_slowest_stage_sets_the_period() -> None:
    # Eight micro-batches through a stage of 6: at least 48, plus filling from the other three.
    result = replay(ONE_F_ONE_B, 8, [[1], [1], [2], [1]], [[2], [2], [4], [2]], [], 0.0)
    assert 48 < result.makespan <= 48 + 3 * 6


def test_a_message_wraps_from_the_last_stage_to_the_first_stages_next_chunk() -> None:
    # Two forwards per stage in a row, messages of 10 between them, then the same backwards.
    result = replay(INTERLEAVED, 2, [[1, 1], [1, 1]], [[1, 1], [1, 1]], [], 10.0, blocking=False)
    # F0 passes four virtual stages with three messages; stage 1 ends F1.1 one later, its backward runs in turn.
    assert result.makespan == (4 + 3 * 10) + 2 + (4 + 3 * 10)


def test_zero_bubble_fills_the_cool_down() -> None:
    """(p − 1)(f + b − w) of bubble against 1F1B's (p − 1)(f + b + w): Qi et al. 2023, table 2."""
    stages, count = 4, 8
    one = [[1.0]] * stages
    split = replay(ZERO_BUBBLE, count, one, one, one, 0.0, blocking=False)
    whole = replay(ONE_F_ONE_B, count, one, [[2.0]] * stages, [], 0.0, blocking=False)
    assert split.makespan == count * 3 + (stages - 1) * 1
    assert whole.makespan == count * 3 + (stages - 1) * 3


def broken(order: SlotOrder) -> Schedule:
    return Schedule("broken", "broken", order, source="none")


def test_a_deadlock_of_a_schedule_is_an_error() -> None:
    def crossed(stage: int, num_stages: int, num_micro_batches: int, num_chunks: int) -> list[Slot]:
        return written("F0 B0 F1 B1" if stage == 0 else "F1 B1 F0 B0")

    with pytest.raises(AssertionError, match="deadlocks"):
        waiting_order(broken(crossed), 2, 2, 1)
    with pytest.raises(AssertionError, match="deadlocks"):
        meeting_order(broken(crossed), 2, 2)


@pytest.mark.parametrize(
    ("slots", "message"),
    [
        ("F0 F1 B0", "is missing"),
        ("F0 F0 B0 B1", "runs twice"),
        ("F0 B1 F1 B0", "before what it is made from"),
        ("F0 F2 B0 B2", "no such micro-batch"),
        ("F0 F1.1 B0 B1.1", "no such micro-batch"),
    ],
)
def test_a_schedule_with_a_missing_or_repeated_slot_is_an_error(slots: str, message: str) -> None:
    schedule = broken(lambda stage, num_stages, num_micro_batches, num_chunks: written(slots))
    with pytest.raises(AssertionError, match=message):
        waiting_order(schedule, 1, 2, 1)


def test_interleaved_and_zero_bubble_have_no_messages_that_block() -> None:
    with pytest.raises(AssertionError, match="no messages that block"):
        replay(INTERLEAVED, 2, [[1, 1]] * 2, [[1, 1]] * 2, [], 0.0)
    with pytest.raises(AssertionError, match="no messages that block"):
        replay(ZERO_BUBBLE, 2, [[1]] * 2, [[1]] * 2, [[1]] * 2, 0.0)


def test_every_schedule_names_its_source() -> None:
    for name, schedule in SCHEDULES.items():
        assert schedule.name == name
        assert "arXiv:" in schedule.source


def test_breadth_first_chunks_keep_the_bubble_of_interleaving_and_every_micro_batch() -> None:
    """Lamy-Poirier 2022, arXiv:2211.05953, section 4.1: (p − 1) / v of a stage's passes are the bubble."""
    breadth_first, sizes = SCHEDULES["looped_bfs"], ([[1.0, 1.0]] * 4, [[2.0, 2.0]] * 4)
    found, depth_first = (replay(each, 8, *sizes, [], 0.0, False) for each in (breadth_first, INTERLEAVED))
    assert found.makespan == depth_first.makespan == (8 * 2 + 3) * 3.0
    assert peak_in_flight(breadth_first, 0, 4, 8, 2) == 16
    assert peak_in_flight(INTERLEAVED, 0, 4, 8, 2) == 11
    assert breadth_first.order(0, 4, 2, 2) == [
        *(Slot(FORWARD, micro_batch, chunk) for micro_batch, chunk in ((0, 0), (1, 0), (0, 1), (1, 1))),
        *(Slot(BACKWARD, micro_batch, chunk) for micro_batch, chunk in ((1, 1), (0, 1), (1, 0), (0, 0))),
    ]


def test_breadth_first_stages_wait_where_micro_batches_are_fewer_than_stages() -> None:
    sizes = ([[1.0, 1.0]] * 4, [[2.0, 2.0]] * 4)
    found = replay(SCHEDULES["looped_bfs"], 2, *sizes, [], 0.0, False)
    assert found.makespan == (2 * 4 + 2 - 1) * 3.0  # the second micro-batch leaves the last chunk behind the first
