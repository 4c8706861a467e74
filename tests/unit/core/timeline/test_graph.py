"""The replay of a dependency graph: hand-worked timelines, and errors that name the tasks."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor.core.timeline.graph import GraphError, GraphTask, replay_graph


def test_a_task_waits_for_its_stream_and_for_all_its_predecessors() -> None:
    found = replay_graph(
        [
            GraphTask("load", 0, "copy", 4.0),
            GraphTask("first", 0, "compute", 1.0),
            GraphTask("second", 0, "compute", 2.0, after=(0, 1)),
            GraphTask("reduce", 0, "network", 3.0, after=(1,)),
            GraphTask("third", 0, "compute", 1.0, after=(3,)),
        ]
    )
    assert [(span.start_us, span.end_us) for span in found.spans] == [(0, 4), (0, 1), (4, 6), (1, 4), (6, 7)]
    assert found.makespan_us == 7.0
    assert found.critical_path == [0, 2, 4]
    assert found.idle_us == {(0, "copy"): 3.0, (0, "compute"): 3.0, (0, "network"): 4.0}


def test_a_lag_delays_only_what_waits_for_it() -> None:
    tasks = [GraphTask("send", 0, "compute", 1.0), GraphTask("next", 0, "compute", 1.0)]
    tasks.append(GraphTask("receive", 1, "compute", 1.0, after=(0, 1), lags_us=(5.0, 0.0)))
    found = replay_graph(tasks)
    assert [span.start_us for span in found.spans] == [0.0, 1.0, 6.0]
    assert found.critical_path == [0, 2]


def test_tasks_may_come_before_what_they_wait_for() -> None:
    found = replay_graph([GraphTask("last", 0, "compute", 1.0, after=(2,)), *[GraphTask("first", 1, "a", 2.0)] * 2])
    assert [span.start_us for span in found.spans] == [4.0, 0.0, 2.0]


def test_tasks_that_are_not_exclusive_overlap() -> None:
    found = replay_graph([GraphTask("message", 0, "link", 2.0, is_exclusive=False)] * 3)
    assert found.makespan_us == 2.0
    assert found.idle_us == {}


def test_nothing_takes_no_time() -> None:
    assert replay_graph([]).makespan_us == 0.0


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        ([GraphTask("a", 0, "s", -1.0)], r"task 0 \(a, rank 0, s\) lasts -1.0 µs; a duration is finite"),
        ([GraphTask("a", 0, "s", math.nan)], "lasts nan µs"),
        ([GraphTask("a", 0, "s", math.inf)], "lasts inf µs"),
        ([GraphTask("a", 0, "s", 1.0, (1,))], "waits for task 1; there are tasks 0 to 0"),
        ([GraphTask("a", 0, "s", 1.0, (-1,))], "waits for task -1;"),
        ([GraphTask("a", 0, "s", 1.0), GraphTask("b", 0, "s", 1.0, (0,), (math.nan,))], "has a lag of nan µs"),
        ([GraphTask("a", 0, "s", 1.0), GraphTask("b", 0, "s", 1.0, (0,), (1.0, 2.0))], "has 2 lags; expected one"),
        (
            [GraphTask("a", 0, "s", 1.0), GraphTask("b", 1, "s", 1.0, (2,)), GraphTask("c", 2, "s", 1.0, (0, 1))],
            r"task 1 \(b, rank 1, s\) waits for task 2 \(c, rank 2, s\) waits for task 1 \(b, rank 1, s\)$",
        ),
        # The second task of a stream waits for the first one.
        ([GraphTask("a", 0, "s", 1.0, (1,)), GraphTask("b", 0, "s", 1.0)], "tasks wait for each other: task 0"),
    ],
)
def test_a_graph_that_cannot_be_replayed_names_the_task(tasks: list[GraphTask], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        replay_graph(tasks)


def test_a_long_circle_is_cut_short() -> None:
    tasks = [GraphTask(f"t{i}", i, "s", 1.0, ((i + 1) % 50,)) for i in range(50)]
    with pytest.raises(GraphError, match="45 more") as raised:
        replay_graph(tasks)
    assert len(str(raised.value)) < 300


@st.composite
def graphs(draw: st.DrawFn) -> list[GraphTask]:
    """Draw tasks that wait for earlier ones, on three streams of two ranks."""
    tasks = []
    for index in range(draw(st.integers(1, 30))):
        after = tuple(sorted(draw(st.sets(st.integers(0, index - 1), max_size=3)))) if index else ()
        lags = tuple(draw(st.floats(0.0, 10.0)) for _ in after)
        place = draw(st.sampled_from(((0, "compute"), (0, "network"), (1, "compute"))))
        duration = draw(st.floats(0.0, 100.0))
        tasks.append(GraphTask(f"t{index}", *place, duration, after, lags, draw(st.booleans())))
    return tasks


@given(graphs())
def test_every_task_starts_as_soon_as_it_may(tasks: list[GraphTask]) -> None:
    """Worked out task by task in the order given, which is an order of time here."""
    free: dict[tuple[int, str], float] = {}
    ends: list[float] = []
    for task in tasks:
        start = free.get((task.rank, task.stream), 0.0) if task.is_exclusive else 0.0
        start = max([start, *(ends[one] + lag for one, lag in zip(task.after, task.lags_us, strict=True))])
        ends.append(start + task.duration_us)
        if task.is_exclusive:
            free[task.rank, task.stream] = ends[-1]
    found = replay_graph(tasks)
    assert [span.end_us for span in found.spans] == ends
    assert found.makespan_us == max(ends)


@given(graphs())
def test_the_critical_path_leads_without_a_gap_from_the_start_to_the_end(tasks: list[GraphTask]) -> None:
    found = replay_graph(tasks)
    first, last = found.critical_path[0], found.critical_path[-1]
    assert found.spans[first].start_us == 0.0
    assert found.spans[last].end_us == found.makespan_us
    for before, after in pairwise(found.critical_path):
        task = tasks[after]
        lags = [lag for one, lag in zip(task.after, task.lags_us, strict=True) if one == before]
        reached = {found.spans[before].end_us + lag for lag in lags} | {found.spans[before].end_us}
        assert found.spans[after].start_us in reached


@given(graphs(), st.data())
def test_the_order_of_tasks_decides_only_within_a_stream(tasks: list[GraphTask], data: st.DataObject) -> None:
    """Streams given one after the other, in any order, are the same graph."""
    streams = sorted({(task.rank, task.stream) for task in tasks})
    turn = data.draw(st.permutations(streams))
    order = sorted(range(len(tasks)), key=lambda i: turn.index((tasks[i].rank, tasks[i].stream)))
    new = {old: position for position, old in enumerate(order)}
    moved = [tasks[old]._replace(after=tuple(new[one] for one in tasks[old].after)) for old in order]
    ends = [span.end_us for span in replay_graph(moved).spans]
    assert [ends[new[old]] for old in range(len(tasks))] == [span.end_us for span in replay_graph(tasks).spans]


def test_a_link_carries_messages_at_once_and_a_shorter_task_ends_the_step_earlier() -> None:
    tasks = [
        GraphTask("forward", 0, "compute", 4.0),
        GraphTask("backward", 0, "compute", 6.0),
        GraphTask("reduce", 0, "nccl", 3.0, after=(1,)),
        GraphTask("send", 0, "link", 8.0, is_exclusive=False),
        GraphTask("send", 0, "link", 1.0, is_exclusive=False),
        GraphTask("step", 0, "compute", 1.0, after=(2,)),
    ]
    assert [span.start_us for span in replay_graph(tasks).spans] == [0.0, 4.0, 10.0, 0.0, 0.0, 13.0]
    tasks[1] = tasks[1]._replace(duration_us=3.0)
    assert replay_graph(tasks).makespan_us == 11.0
