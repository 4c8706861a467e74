"""Trace files of several ranks with GPUs, from reading to who waits for whom."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from predictor.replay.files.reading import read_traces
from predictor.replay.graph.build_graph import local_graph
from predictor.replay.graph.global_graph import global_graph
from predictor.replay.graph.global_replay import replay_global
from predictor.replay.graph.local_graph import NO_PEER
from tests.kineto_made import write_job
from tests.traces_made import make_job

COMPUTING = [[100.0, 60.0, 80.0], [70.0, 90.0, 40.0], [120.0, 50.0, 50.0]]


def test_three_ranks_are_read_and_joined(tmp_path: Path) -> None:
    made = make_job(
        COMPUTING, [30.0, 45.0, 25.0], starts_us=[0.0, 15.0, 4.0], offsets_us=[0.0, 1234.5, -77.0], launch_us=9.0
    )
    write_job(tmp_path, made)
    graph = global_graph([local_graph(trace) for trace in read_traces([tmp_path])])
    replay = replay_global(graph)
    assert [collective.name for collective in graph.collectives] == ["all_reduce"] * 3
    assert [collective.size_bytes for collective in graph.collectives] == [1000, 2000, 3000]
    assert [clock.offset_us for clock in graph.clocks] == pytest.approx(made.offsets_us, abs=0.01)
    assert [rank.step_us for rank in replay.ranks] == pytest.approx(made.steps_us, abs=0.01)
    for collective, truth in zip(replay.collectives, made.waits_us, strict=True):
        assert list(collective.waits_us.values()) == pytest.approx(truth, abs=0.01)


def test_messages_of_a_pipeline_are_matched_by_their_ends(tmp_path: Path) -> None:
    """Rank 0 sends to rank 1, rank 1 to rank 2; then all reduce."""
    made = make_job(COMPUTING, [30.0, 45.0, 25.0], launch_us=9.0)
    ends = {(0, 0): ("send", 1), (1, 0): ("recv", 0), (1, 1): ("send", 2), (2, 1): ("recv", 1)}
    locals_ = []
    for local in made.locals:
        calls = []
        for call in local.collectives:
            name, peer = ends.get((local.rank, call.order), ("all_reduce", NO_PEER))
            if call.order == 2 or peer != NO_PEER:
                calls.append(call._replace(name=name, peer=peer, size_bytes=4096))
        locals_.append(replace(local, collectives=calls))
    write_job(tmp_path, replace(made, locals=locals_))
    graph = global_graph([local_graph(trace) for trace in read_traces([tmp_path])])
    joined = sorted((coll.name, [member.rank for member in coll.members]) for coll in graph.collectives)
    assert joined == [("all_reduce", [0, 1, 2]), ("send_recv", [0, 1]), ("send_recv", [1, 2])]
    assert [rank.step_us for rank in replay_global(graph).ranks] == pytest.approx(made.steps_us, abs=0.01)
