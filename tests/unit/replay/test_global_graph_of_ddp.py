"""Traces of a real data-parallel job on two ranks, from files to who waits for whom."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

from predictor.replay.files.reading import read_traces
from predictor.replay.graph.build_graph import local_graph
from predictor.replay.graph.global_graph import GlobalGraph, global_graph
from predictor.replay.graph.global_replay import replay_global
from tests.unit import ddp_job


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> GlobalGraph:
    if find_spec("torch") is None:  # which takes seconds to import, and only the ranks need it
        pytest.skip("torch is not installed")
    folder = tmp_path_factory.mktemp("ddp")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    ranks = [
        subprocess.Popen([sys.executable, ddp_job.__file__, str(rank), str(folder)], env=environment)
        for rank in range(ddp_job.RANKS)
    ]
    try:
        assert [rank.wait(timeout=90) for rank in ranks] == [0] * ddp_job.RANKS
    finally:
        for rank in ranks:
            rank.kill()
    traces = read_traces([folder / f"rank-{rank}.json" for rank in range(ddp_job.RANKS)])
    return global_graph([local_graph(trace, 0) for trace in traces])


def test_unchanged_it_takes_each_rank_as_long_as_measured(graph: GlobalGraph) -> None:
    replay = replay_global(graph)
    for rank, local in zip(replay.ranks, graph.ranks, strict=True):
        assert rank.step_us == pytest.approx(local.step_us, rel=0.005)


def test_all_its_buckets_are_joined(graph: GlobalGraph) -> None:
    assert [len(local.collectives) for local in graph.ranks] == [len(graph.collectives)] * ddp_job.RANKS
    reduced = [collective.size_bytes for collective in graph.collectives if collective.name == "all_reduce"]
    assert sum(reduced) == 4 * 4 * (256 * 256 + 256)
    assert len(reduced) > 1


def test_the_clocks_of_one_host_are_one(graph: GlobalGraph) -> None:
    clock = graph.clocks[1]
    assert clock.low_us <= 0.0 <= clock.high_us
    assert abs(clock.offset_us) < ddp_job.SLEEP_S * 1e6 / 10


def test_the_rank_that_sleeps_is_waited_for(graph: GlobalGraph) -> None:
    replay = replay_global(graph)
    first = replay.collectives[0]
    assert first.last_rank == ddp_job.SLOW_RANK
    waits = replay.waited_for_us()
    assert waits[0, 1] > waits.get((1, 0), 0.0)
    slept = any(task.rank == 1 for task in replay.critical_path)
    assert slept
