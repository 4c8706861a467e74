"""Local graphs of public traces: replayed unchanged they last as long as measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from predictor.traces.build_graph import local_graph
from predictor.traces.kineto import read_trace
from predictor.traces.local_graph import LocalGraph
from predictor.traces.local_replay import replay_local
from predictor.traces.steps import step_windows
from tests.conftest import SHARED

TRACES = SHARED / "traces"
NAMES = (
    "hta_alexnet",
    "hta_cpu_only",
    "hta_cupti",
    "hta_event_sync_multi_stream",
    "hta_mi250_minitoy_train",
    "hta_trace_diff_control",
    "param_linear_kineto",
)


def public(name: str) -> Path:
    path = TRACES / f"{name}.json.gz"
    if not path.is_file():
        pytest.skip(f"no public trace {path}")
    return path


def assert_replays(local: LocalGraph) -> None:
    replay = replay_local(local)
    assert replay.makespan_us == pytest.approx(local.step_us, abs=0.01)
    for span, task in zip(replay.spans, local.tasks, strict=True):
        assert span.start_us == pytest.approx(task.start_us, abs=0.01)


@pytest.mark.parametrize("name", NAMES)
def test_unchanged_replay_of_public_traces_takes_as_long_as_measured(name: str) -> None:
    trace = read_trace(public(name))
    for step in (None, *range(min(2, len(step_windows(trace))))):
        local = local_graph(trace, step)
        assert local.step_us >= local.facts["host_us"]  # type: ignore[operator]  # a number
        assert_replays(local)
