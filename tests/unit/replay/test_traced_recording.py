"""Recording traces: settings, inputs, what a slim trace keeps, and a run of two ranks."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from microbench import cli
from microbench.errors import MeasureError
from microbench.traced.processes import run_ranks
from microbench.traced.settings import read_record, settings_of
from microbench.traced.slim import kept_steps, slim_trace, step_us
from predictor.replay.files.events import Category
from predictor.replay.files.execution_trace import read_execution_trace
from predictor.replay.files.kineto import read_trace
from predictor.replay.graph.steps import step_windows
from tests.unit.recorded_steps import NO_TORCH


def mark(number: int, start: float, duration: float) -> dict[str, Any]:
    return {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{number}", "ts": start, "dur": duration}


def operator(name: str, start: float, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": "cpu_op", "name": name, "ts": start, "dur": 1.00049, "args": args}


WHOLE = {
    "schemaVersion": 1,
    "distributedInfo": {"rank": 0, "world_size": 2},
    "trace_id": "unlike at every run",
    "traceEvents": [
        {"ph": "M", "name": "process_name", "ts": 0.0, "args": {"name": "python"}},
        operator("aten::early", 5.0),
        mark(1, 10.0, 10.0),
        operator("aten::linear", 12.00049, **{"Input Dims": [[2, 3]], "Ev Idx": 7}),
        {"ph": "X", "cat": "python_function", "name": "forward", "ts": 13.0, "dur": 1.0},
        mark(2, 20.0, 11.0),
        operator("aten::relu", 30.9),
        mark(3, 31.5, 100.0),
        operator("aten::late", 40.0),
    ],
}


def test_a_slim_trace_has_its_steps_and_nothing_else() -> None:
    slim = slim_trace(WHOLE, range(2))
    names = [event["name"] for event in slim["traceEvents"]]
    assert names == ["process_name", "ProfilerStep#1", "aten::linear", "ProfilerStep#2", "aten::relu"]
    assert slim["distributedInfo"] == {"rank": 0, "world_size": 2}
    assert "trace_id" not in slim
    linear = slim["traceEvents"][2]
    assert (linear["ts"], linear["dur"], linear["args"]) == (12.0, 1.0, {"Input Dims": [[2, 3]]})
    assert step_us(slim) == (10.0, 11.0)


@pytest.mark.parametrize(
    ("shapes", "strides", "is_kept"),
    [
        ([[2, 3], []], [[3, 1], []], False),
        ([[2, 1, 3]], [[3, 99, 1]], False),
        ([[2, 3]], [[1, 2]], True),
        ([[[2, 3], [4]]], [[[3, 1], [1]]], False),
        ([[[2, 3], [4]]], [[[1, 2], [1]]], True),
    ],
)
def test_strides_are_kept_where_they_say_something(shapes: Any, strides: Any, is_kept: bool) -> None:
    call = operator("aten::cat", 12.0, **{"Input Dims": shapes, "Input Strides": strides})
    slim = slim_trace({"traceEvents": [mark(1, 10.0, 10.0), call]}, range(1))
    assert ("Input Strides" in slim["traceEvents"][1]["args"]) is is_kept


def test_one_step_can_stand_for_the_run() -> None:
    trace = {"traceEvents": [mark(1, 0.0, 5.0), mark(2, 10.0, 3.0), mark(3, 20.0, 4.0), mark(4, 30.0, 1.0)]}
    assert kept_steps(trace, 3, "median") == range(2, 3)
    assert kept_steps(trace, 3, "fastest") == range(1, 2)
    assert kept_steps(trace, 3, "all") == range(3)


def test_a_trace_without_enough_steps_is_refused() -> None:
    with pytest.raises(MeasureError, match="recorded 3 whole steps; 4 were asked for"):
        slim_trace(WHOLE, range(4))


def test_images_are_trained_with_sgd_and_language_with_adamw() -> None:
    assert settings_of({"model": "resnet50"}).optimizer == "sgd"
    assert settings_of({"model": "bert"}).optimizer == "adamw"
    roberta = settings_of({"model": "roberta", "batch": 2, "sequence": 16})
    assert roberta.input_data.tensors["input_ids"].shape == (2, 4, 16)


def test_settings_are_checked_before_anything_runs() -> None:
    with pytest.raises(MeasureError, match=r"settings of bert: batch"):
        settings_of({"model": "bert", "batch": 0})
    other = settings_of({"model": "tiny"}).input_data
    with pytest.raises(MeasureError, match="--input is of tiny; expected one of bert"):
        settings_of({"model": "bert", "input_data": other})


def test_a_failing_rank_ends_the_others_and_says_why() -> None:
    with pytest.raises(MeasureError, match=r"rank [01] ended with status 1: .*No module named"):
        run_ranks("microbench.traced.there_is_none", [], 2, 1, 60.0)


def test_two_ranks_are_recorded_by_one_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch", reason=NO_TORCH)
    words = ["trace", "tiny", "--device", "cpu", "--precision", "bf16", "--steps", "2", "--batch", "2"]
    assert cli.main([*words, "--input", str(tmp_path / "input_data"), "--out", str(tmp_path)]) == 0
    folder = tmp_path / "tiny" / "bf16"
    paths = capsys.readouterr().out.split()
    assert paths == [str(folder / f"rank-{rank}.json.gz") for rank in range(2)]
    assert json.loads((tmp_path / "input_data" / "tiny.json").read_text())["tensors"]["labels"]["shape"] == [2]
    record = read_record(folder)
    for rank, path in enumerate(paths):
        trace = json.loads(gzip.decompress(Path(path).read_bytes()))
        assert trace["distributedInfo"]["rank"] == rank
        assert step_us(trace) == record.steps[rank].profiled_us
        assert len(record.steps[rank].profiled_us) == 2
        names = {event["name"] for event in trace["traceEvents"]}
        assert {"aten::conv2d", "aten::linear", "gloo:all_reduce", "Optimizer.step#SGD.step"} <= names
        convolutions = [event for event in trace["traceEvents"] if event["name"] == "aten::conv2d"]
        assert any("c10::BFloat16" in event["args"]["Input type"] for event in convolutions)


def test_an_execution_trace_is_tied_to_the_last_step(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason=NO_TORCH)
    words = ["trace", "tiny", "--device", "cpu", "--steps", "3", "--keep", "median"]
    assert cli.main([*words, "--out", str(tmp_path)]) == 0
    folder = tmp_path / "tiny" / "fp32"
    times, other = read_record(folder).steps
    assert other.kept == times.kept  # ranks that keep different steps could not be joined
    trace = read_trace(folder / "rank-0.json.gz")
    (window,) = step_windows(trace)
    assert window.end_us - window.start_us == pytest.approx(sorted(times.profiled_us)[1])
    execution = read_execution_trace(folder / "execution-0.json.gz")
    nodes = {(node.name, node.record_function): node for node in execution.nodes if node.record_function}
    operators = [event for event in trace.events if event.category is Category.OPERATOR]
    tied = [(event.name, event.args.get("Record function id")) in nodes for event in operators]
    assert sum(tied) > 0.99 * len(operators)
    (linear,) = [event for event in operators if event.name == "aten::linear"]
    node = nodes[linear.name, linear.args["Record function id"]]  # type: ignore[index]
    assert [tensor.shape for tensor in node.inputs][:2] == [(4, 8), (10, 8)]
