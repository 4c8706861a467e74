"""The global graph: collectives of all ranks joined, and replayed together."""

from __future__ import annotations

from dataclasses import replace

import pytest

from predictor.replay.files.record_model import RecordError
from predictor.replay.graph.global_graph import GlobalGraph, global_graph, with_locals
from predictor.replay.graph.global_replay import GlobalReplay, replay_global
from predictor.replay.graph.local_graph import EdgeKind, LocalGraph, TaskKind
from tests.traces_made import MadeJob, make_job

COMPUTING = [[100.0, 60.0, 80.0], [70.0, 90.0, 40.0], [120.0, 50.0, 50.0]]
TRANSFERS = [30.0, 45.0, 25.0]


def job(backend: str = "cuda") -> MadeJob:
    return make_job(COMPUTING, TRANSFERS, starts_us=[0.0, 15.0, 4.0], offsets_us=[0.0, 1234.5, -77.0], backend=backend)


def steps(replay: GlobalReplay) -> list[float]:
    return [rank.step_us for rank in replay.ranks]


@pytest.mark.parametrize("backend", ["cuda", "cpu"])
def test_unchanged_it_takes_each_rank_as_long_as_measured(backend: str) -> None:
    made = job(backend)
    graph = global_graph(made.locals)
    replay = replay_global(graph)
    assert steps(replay) == pytest.approx(made.steps_us)
    assert replay.makespan_us == pytest.approx(max(map(sum, zip(made.starts_us, made.steps_us, strict=True))))
    assert [clock.offset_us for clock in graph.clocks] == pytest.approx(made.offsets_us, abs=1e-6)
    for local, clock in zip(made.locals, graph.clocks, strict=True):
        for at, task in enumerate(local.tasks):
            span = replay.replay.spans[graph.position(local.rank, at)]
            assert span.end_us - clock.shift_us == pytest.approx(task.start_us + task.duration_us), task.name


def test_it_tells_who_waits_for_whom() -> None:
    made = job()
    replay = replay_global(global_graph(made.locals))
    for collective, truth in zip(replay.collectives, made.waits_us, strict=True):
        assert list(collective.waits_us.values()) == pytest.approx(truth, abs=1e-6)
        assert collective.last_rank == truth.index(0.0)
        assert collective.collective.own_us == pytest.approx(collective.end_us - collective.start_us)
    waits = replay.waited_for_us()
    assert sum(waits.values()) == pytest.approx(sum(map(sum, made.waits_us)))
    assert all(waiting != last for waiting, last in waits)


def test_a_step_is_busy_waiting_communicating_and_idle() -> None:
    replay = replay_global(global_graph(job().locals))
    for rank, times in zip(replay.ranks, COMPUTING, strict=True):
        assert rank.busy_us == pytest.approx(sum(times) + 20.0)
        parts = rank.busy_us + rank.waiting_us + rank.communicating_us + rank.idle_us
        assert parts == pytest.approx(rank.step_us)
        assert min(rank.waiting_us, rank.communicating_us, rank.idle_us) >= 0.0


def test_the_critical_path_crosses_to_the_rank_that_comes_last() -> None:
    made = make_job([[50.0], [400.0]], [30.0])
    replay = replay_global(global_graph(made.locals))
    path = replay.critical_path
    assert sum(task.span.duration_us for task in path) == pytest.approx(replay.makespan_us)
    assert any(task.rank == 1 and task.span.name == "layer0_kernel" for task in path)
    assert not any(task.rank == 0 and task.span.name == "layer0_kernel" for task in path)


def test_a_faster_last_rank_lets_the_others_wait_less() -> None:
    made = make_job([[50.0], [400.0]], [30.0])
    graph = global_graph(made.locals)
    slow = made.locals[1]
    tasks = [task._replace(duration_us=100.0) if task.name == "layer0_kernel" else task for task in slow.tasks]
    faster = replay_global(with_locals(graph, [made.locals[0], replace(slow, tasks=tasks)]))
    truth = make_job([[50.0], [100.0]], [30.0])
    assert steps(faster) == pytest.approx(truth.steps_us)
    assert faster.collectives[0].waits_us[0] == pytest.approx(50.0)


def test_one_rank_alone_keeps_its_collectives_with_a_note() -> None:
    made = job()
    graph = global_graph([made.locals[1]])
    assert not graph.collectives
    assert steps(replay_global(graph)) == pytest.approx([made.steps_us[1]])
    assert any("waiting for other ranks is inside" in note for note in graph.notes)
    assert any("no trace of ranks 0, 2" in note for note in graph.notes)


def cut(local: LocalGraph, first: int, last: int) -> LocalGraph:
    """Return a trace that says nothing of the collectives before ``first`` and from ``last`` on."""
    return replace(
        local, collectives=[call._replace(order=at) for at, call in enumerate(local.collectives[first:last])]
    )


def test_steps_cut_at_different_collectives_are_aligned() -> None:
    made = make_job(
        [[20.0 + 7 * layer + rank for layer in range(8)] for rank in range(2)], [9.0] * 8, offsets_us=[0.0, 40.0]
    )
    graph = global_graph([cut(made.locals[0], 0, 7), cut(made.locals[1], 1, 8)])
    assert [collective.size_bytes for collective in graph.collectives] == [1000 * layer for layer in range(2, 8)]
    assert sum("at the border" in note for note in graph.notes) == 2
    assert graph.clocks[1].offset_us == pytest.approx(40.0)
    assert steps(replay_global(graph)) == pytest.approx(made.steps_us)


def test_equal_collectives_are_aligned_by_their_times() -> None:
    made = make_job([[100.0 - rank for _ in range(6)] for rank in range(2)], [9.0] * 6, sizes=[4096] * 6)
    graph = global_graph([made.locals[0], cut(made.locals[1], 2, 6)])
    first = graph.collectives[0]
    assert [member.task for member in first.members] == [local.collectives[2].task for local in made.locals]


@pytest.mark.parametrize(
    ("name", "size_bytes", "told"),
    [
        ("all_gather", 2000, "call 1 is all_reduce of 2000 bytes on rank 0 and all_gather of 2000 bytes on rank 2"),
        ("all_reduce", 8, "call 1 is all_reduce of 2000 bytes on rank 0 and all_reduce of 8 bytes on rank 2"),
    ],
)
def test_different_collectives_are_one_line(name: str, size_bytes: int, told: str) -> None:
    made = job()
    calls = list(made.locals[2].collectives)
    calls[1] = calls[1]._replace(name=name, size_bytes=size_bytes)
    with pytest.raises(RecordError, match=told) as error:
        global_graph([*made.locals[:2], replace(made.locals[2], collectives=calls)])
    assert "\n" not in str(error.value)
    assert "group 0" in str(error.value)


def test_sizes_may_differ_where_precisions_do() -> None:
    made = job()
    calls = [call._replace(size_bytes=call.size_bytes // 2) for call in made.locals[2].collectives]
    graph = global_graph([*made.locals[:2], replace(made.locals[2], collectives=calls)], sizes_agree=False)
    assert len(graph.collectives) == 3


def test_two_traces_of_one_rank_are_refused() -> None:
    made = job()
    with pytest.raises(RecordError, match="2 traces are of rank 1"):
        global_graph([made.locals[1], made.locals[1]])


def test_ranks_without_numbers_are_counted() -> None:
    made = job()
    unnumbered = [replace(local, rank=0, world_size=1) for local in made.locals]
    graph = global_graph(unnumbered)
    assert [local.rank for local in graph.ranks] == [0, 1, 2]
    assert steps(replay_global(graph)) == pytest.approx(made.steps_us)


def test_groups_are_matched_apart() -> None:
    """Two groups of one rank pair each run their own order; the third rank is in one of them."""
    made = job()
    locals_ = []
    for local in made.locals:
        calls = []
        for call in local.collectives:
            if call.order == 1 and local.rank < 2:
                call = call._replace(group="1", group_ranks=(0, 1), order=0)
            elif call.order == 1:
                continue
            calls.append(call)
        locals_.append(replace(local, collectives=calls))
    graph = global_graph(locals_)
    assert sorted((coll.group, len(coll.members)) for coll in graph.collectives) == [("0", 3), ("0", 3), ("1", 2)]
    replay = replay_global(graph)
    assert steps(replay) == pytest.approx(made.steps_us)


def message_job(names: tuple[str, str], peers: bool) -> GlobalGraph:
    made = make_job([[10.0, 60.0], [50.0, 20.0]], [15.0, 15.0], sizes=[64, 64])
    locals_ = []
    for local, name in zip(made.locals, names, strict=True):
        calls = [
            call._replace(name=name, group="", group_ranks=(), peer=1 - local.rank if peers else -1)
            for call in local.collectives
        ]
        locals_.append(replace(local, collectives=calls))
    return global_graph(locals_)


@pytest.mark.parametrize("peers", [True, False])
def test_sends_match_receives(peers: bool) -> None:
    graph = message_job(("send", "recv"), peers)
    assert [(coll.name, len(coll.members)) for coll in graph.collectives] == [("send_recv", 2)] * 2


def test_a_send_that_ends_before_its_receiver_comes_does_not_wait() -> None:
    made = make_job([[10.0], [90.0]], [15.0])
    sender, receiver = (
        replace(local, collectives=[call._replace(name=name) for call in local.collectives])
        for local, name in zip(made.locals, ("send", "recv"), strict=True)
    )
    tasks = [task._replace(duration_us=5.0) if task.kind is TaskKind.COLLECTIVE else task for task in sender.tasks]
    graph = global_graph([replace(sender, tasks=tasks), receiver])
    # A message alone compares the clocks by its ends, which puts the receiver's step before the sender's.
    assert graph.clocks[1].meetings == 1
    _, received = graph.collectives[0].members
    assert received.waits_for == (0, 1)
    assert steps(replay_global(graph))[1] == pytest.approx(made.steps_us[1])


def test_a_thread_waits_for_all_buckets_where_another_one_becomes_the_last() -> None:
    made = make_job([[100.0, 60.0], [70.0, 90.0]], [30.0, 45.0], backend="cpu")
    apart = []
    for (
        local
    ) in made.locals:  # the two collectives on threads of their own; the last one alone is seen to be waited for
        first, last = (call.task for call in local.collectives)
        tasks = list(local.tasks)
        tasks[last] = tasks[last]._replace(
            row=3, after=tuple(edge for edge in tasks[last].after if edge.kind is EdgeKind.EVENT)
        )
        calls = [call._replace(gradients=(at,)) for at, call in enumerate(local.collectives)]
        apart.append(replace(local, tasks=tasks, collectives=calls, rows=(*local.rows, "thread 9")))
    graph = global_graph(apart)
    before = replay_global(graph)
    assert steps(before) == pytest.approx(made.steps_us)
    first, last = (graph.position(0, call.task) for call in apart[0].collectives)
    slower = list(graph.tasks)
    slower[first] = slower[first]._replace(duration_us=500.0)
    after = replay_global(replace(graph, tasks=slower))
    optimizer = next(at for at, task in enumerate(graph.tasks) if task.name == "step" and task.rank == 0)
    assert after.replay.spans[last].end_us < after.replay.spans[first].end_us
    assert after.replay.spans[optimizer].start_us == pytest.approx(after.replay.spans[first].end_us)


def test_collectives_that_threads_begin_in_another_order_are_matched_as_given() -> None:
    made = job("cpu")
    turned = []
    for local in made.locals:
        tasks = list(local.tasks)
        for giver, call in enumerate(local.collectives):
            tasks[call.task] = tasks[call.task]._replace(operator=giver)
        calls = local.collectives[::-1] if local.rank == 1 else local.collectives
        turned.append(replace(local, tasks=tasks, collectives=calls))
    assert global_graph(turned).collectives == global_graph(made.locals).collectives


def test_messages_of_unknown_ends_are_left_as_they_are() -> None:
    made = job()
    locals_ = [
        replace(local, collectives=[call._replace(name="send_recv") for call in local.collectives])
        for local in made.locals
    ]
    graph = global_graph(locals_)
    assert not graph.collectives
    assert sum("with whom it exchanges 3 messages" in note for note in graph.notes) == 3
    pair = [
        replace(local, collectives=[c._replace(group_ranks=(0, 1)) for c in local.collectives]) for local in locals_
    ]
    assert [len(coll.members) for coll in global_graph(pair[:2]).collectives] == [2, 2, 2]


def test_ranks_without_a_trace_and_steps_of_other_names_are_told() -> None:
    made = job()
    graph = global_graph([made.locals[0], replace(made.locals[2], label="ProfilerStep#2")])
    assert "2 of 3 ranks have a trace" in graph.notes
    assert "the ranks' steps have different names: ProfilerStep#1, ProfilerStep#2" in graph.notes
    assert [collective.ranks for collective in graph.collectives] == [3, 3, 3]


def test_there_must_be_a_trace() -> None:
    with pytest.raises(RecordError, match="there is no trace"):
        global_graph([])


def test_collectives_in_a_circle_are_one_line() -> None:
    """Rank 0 runs group a before group b on one stream, rank 1 the other way round: no job can."""
    made = make_job([[10.0, 10.0], [10.0, 10.0]], [5.0, 5.0], sizes=[64, 64])
    locals_ = []
    for local in made.locals:
        groups = ("a", "b") if local.rank == 0 else ("b", "a")
        calls = [call._replace(group=group) for call, group in zip(local.collectives, groups, strict=True)]
        locals_.append(replace(local, collectives=calls))
    with pytest.raises(RecordError, match="do not fit together"):
        replay_global(global_graph(locals_))
