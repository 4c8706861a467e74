"""Clocks of ranks, compared by the collectives in which they meet."""

from __future__ import annotations

from math import inf

import pytest

from predictor.replay.graph.clocks import Meeting, compare_clocks


def test_two_clocks_are_apart_by_the_median_difference_of_their_ends() -> None:
    meetings = [
        Meeting((0, 1), (0.0, 30.0), (50.0, 150.0)),
        Meeting((0, 1), (60.0, 170.0), (100.0, 200.0)),
        Meeting((0, 1), (110.0, 215.0), (150.0, 249.0)),
    ]
    first, second = compare_clocks({0: 1000.0, 1: 5000.0}, meetings)
    assert (first.shift_us, second.shift_us) == (100.0, 0.0)
    assert (
        second.offset_us == -100.0 - 4000.0
    )  # its step starts 100 µs before the first's, and its clock says 4 ms after
    assert second.spread_us == 0.0
    assert second.meetings == 3


def test_bounds_are_those_of_starts_and_ends() -> None:
    (_, clock) = compare_clocks({0: 0.0, 1: 0.0}, [Meeting((0, 1), (10.0, 12.0), (20.0, 21.0))])
    # It may start no later than the first ends, and end no earlier than the first starts.
    assert (clock.low_us, clock.high_us) == (10.0 - 21.0, 20.0 - 12.0)
    assert clock.low_us <= clock.offset_us == -1.0 <= clock.high_us


def test_an_estimate_outside_its_bounds_is_moved_to_the_nearest() -> None:
    # Rank 1 ends two of three collectives 40 µs late; one collective shows that it cannot be so far ahead.
    meetings = [
        Meeting((0, 1), (0.0, 0.0), (100.0, 140.0)),
        Meeting((0, 1), (200.0, 200.0), (300.0, 340.0)),
        Meeting((0, 1), (400.0, 401.0), (405.0, 406.0)),
    ]
    (_, clock) = compare_clocks({0: 0.0, 1: 1000.0}, meetings)
    assert clock.offset_us + 1000.0 == 400.0 - 406.0 == clock.low_us + 1000.0
    assert clock.is_consistent


def test_clocks_that_differ_by_less_than_ends_scatter_are_taken_as_recorded() -> None:
    ends = [(100.0, 130.0), (200.0, 190.0), (300.0, 325.0), (400.0, 385.0), (500.0, 508.0)]
    meetings = [Meeting((0, 1), (end[0] - 90.0, end[0] - 90.0), end) for end in ends]
    (_, clock) = compare_clocks({0: 0.0, 1: 0.0}, meetings)
    assert clock.offset_us == 0.0
    assert clock.spread_us == 7.5  # the median of half of 30, 10, 25, 15 and 8
    (_, clock) = compare_clocks({0: 0.0, 1: -500.0}, meetings)
    assert clock.offset_us == 500.0 - 8.0


def test_a_drifting_clock_says_so() -> None:
    meetings = [Meeting((0, 1), (0.0, 0.0), (5.0, 5.0)), Meeting((0, 1), (1000.0, 1100.0), (1005.0, 1105.0))]
    (_, clock) = compare_clocks({0: 0.0, 1: 0.0}, meetings)
    assert not clock.is_consistent
    assert clock.spread_us == 25.0  # of 50 µs from end to end, shared with the other clock


def test_ranks_that_never_meet_directly_are_compared_by_others() -> None:
    meetings = [Meeting((0, 1), (0.0, 7.0), (10.0, 17.0)), Meeting((1, 2), (20.0, 25.0), (30.0, 35.0))]
    clocks = compare_clocks({0: 0.0, 1: 0.0, 2: 0.0}, meetings)
    assert [clock.offset_us for clock in clocks] == [0.0, -7.0, -12.0]


def test_a_message_compares_clocks_only_where_nothing_else_does() -> None:
    collective = Meeting((0, 1), (0.0, 0.0), (10.0, 12.0))
    messages = [Meeting((0, 1), (0.0, 0.0), (1.0, 99.0), False), Meeting((1, 2), (0.0, 0.0), (10.0, 15.0), False)]
    clocks = compare_clocks({0: 0.0, 1: 0.0}, [collective, messages[0]])
    assert clocks[1].offset_us == -2.0
    clocks = compare_clocks({0: 0.0, 1: 0.0, 2: 0.0}, [collective, messages[1]])
    assert [clock.offset_us for clock in clocks] == [0.0, -2.0, -7.0]


def test_a_rank_without_collectives_keeps_its_recorded_clock() -> None:
    clocks = compare_clocks({0: 500.0, 1: 520.0}, [])
    assert [(clock.shift_us, clock.meetings) for clock in clocks] == [(0.0, 0), (20.0, 0)]
    assert (clocks[1].low_us, clocks[1].high_us) == (-inf, inf)


@pytest.mark.parametrize("ranks", [3, 8])
def test_one_straggling_end_moves_no_clock(ranks: int) -> None:
    everyone = tuple(range(ranks))
    offsets = [13.0 * rank for rank in everyone]
    meetings = []
    for at in range(5):
        late = [40.0 if at == 2 and rank == 1 else 0.0 for rank in everyone]
        ends = tuple(100.0 * at + 50.0 + wait - offset for wait, offset in zip(late, offsets, strict=True))
        meetings.append(Meeting(everyone, tuple(100.0 * at - offset for offset in offsets), ends))
    clocks = compare_clocks(dict.fromkeys(everyone, 0.0), meetings)
    assert [clock.offset_us for clock in clocks] == pytest.approx(offsets)
