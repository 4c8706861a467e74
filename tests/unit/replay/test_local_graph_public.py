"""Local graphs of public traces: replayed unchanged they last as long as measured."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from predictor.replay.files.events import RankTrace
from predictor.replay.files.kineto import read_trace
from predictor.replay.graph.build_graph import graph_between, local_graph
from predictor.replay.graph.gaps import NO_TASK, gaps
from predictor.replay.graph.local_graph import EdgeKind, LocalGraph, TaskKind
from predictor.replay.graph.local_replay import replay_local
from predictor.replay.graph.steps import StepWindow, step_windows
from tests.conftest import SHARED
from tests.critical_parts import critical_parts

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


@cache
def read(path: Path) -> RankTrace:
    """Read a trace once for all tests: the largest takes a second."""
    return read_trace(path)


def assert_replays(local: LocalGraph) -> None:
    replay = replay_local(local)
    assert replay.makespan_us == pytest.approx(local.step_us, abs=0.01)
    for span, task in zip(replay.spans, local.tasks, strict=True):
        assert span.start_us == pytest.approx(task.start_us, abs=0.01)


@pytest.mark.parametrize("name", NAMES)
def test_unchanged_replay_of_public_traces_takes_as_long_as_measured(name: str) -> None:
    trace = read(public(name))
    for step in (None, *range(min(2, len(step_windows(trace))))):
        local = local_graph(trace, step)
        assert local.step_us >= local.facts["host_us"]  # type: ignore[operator]  # a number
        assert_replays(local)


def test_critical_path_of_alexnet_is_that_of_holistic_trace_analysis() -> None:
    """Compare with HTA 0.5.0 (tests/reference_hta.py): compute 3712 µs, launches 30 µs, between kernels 50 µs."""
    trace = read(public("hta_alexnet"))
    name = "[param|pytorch.model.alex_net|0|0|0|measure|forward]"
    last = max((event for event in trace.events if event.name == name), key=lambda event: event.start_us)
    local = graph_between(trace, StepWindow(name, last.start_us, last.end_us))
    parts = list(critical_parts(local))
    on_gpu = [part for part in parts if part.task.kind in (TaskKind.KERNEL, TaskKind.COPY)]
    launched = sum(part.lag_us for part in on_gpu if part.edge is EdgeKind.LAUNCH)
    assert sum(part.us for part in on_gpu) == 3712
    assert launched == 30
    assert sum(part.lag_us for part in on_gpu) - launched == pytest.approx(50, abs=1)
    assert sum(part.us + part.lag_us for part in parts) == pytest.approx(local.step_us)


def test_streams_are_idle_as_long_as_holistic_trace_analysis_says() -> None:
    """Compare with HTA 0.5.0 (tests/reference_hta.py): idle time between the first and the last task of a stream."""
    trace = read(public("hta_trace_diff_control"))
    local = graph_between(trace, StepWindow("whole trace", 0.0, max(event.end_us for event in trace.events)))
    first = {row: min(task.start_us for task in local.tasks if task.row == row) for row in range(len(local.rows))}
    idle = dict.fromkeys(local.rows, 0.0)
    for gap in gaps(local):
        if gap.task != NO_TASK and gap.start_us >= first[gap.row]:
            idle[local.rows[gap.row]] += gap.us
    streams = {row: us for row, us in idle.items() if row.startswith("stream")}
    assert streams == {"stream 7": 183214, "stream 21": 285884, "stream 20": 434879, "stream 22": 342287}


def test_collectives_of_a_trace_without_details_are_known_by_what_launched_them() -> None:
    local = local_graph(read(public("hta_trace_diff_control")), 1)
    names = [collective.name for collective in local.collectives]
    assert names == ["all_to_all"] * 7 + ["all_reduce"] * 3
    buckets = [len(collective.gradients) for collective in local.collectives if collective.name == "all_reduce"]
    accumulated = sum(operator.name == "torch::autograd::AccumulateGrad" for operator in local.operators)
    assert all(buckets)
    assert 0.9 * accumulated < sum(buckets) <= accumulated  # not all parameters are DDP's
    assert min(collective.size_bytes for collective in local.collectives) > 0
    assert local.facts["unexplained_gpu_starts"] == 0
