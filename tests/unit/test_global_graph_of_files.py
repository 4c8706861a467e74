"""Trace files of several ranks with GPUs, from reading to who waits for whom."""

from __future__ import annotations

from pathlib import Path

import pytest

from predictor.traces.build_graph import local_graph
from predictor.traces.global_graph import global_graph
from predictor.traces.global_replay import replay_global
from predictor.traces.reading import read_traces
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
