"""Steps are found by the profiler's annotations, the loop's, or the optimizer's, and the last whole one is chosen."""

from __future__ import annotations

from pathlib import Path

import pytest

from predictor.replay.files.events import RankTrace
from predictor.replay.files.kineto import read_trace
from predictor.replay.files.reading import read_traces
from predictor.replay.files.record_model import RecordError
from predictor.replay.graph.build_graph import local_graph
from predictor.replay.graph.steps import StepWindow, choose_step, choose_steps, step_windows
from predictor.replay.question import ReplayQuestion, traced_step
from tests.unit.kineto_traces import Event, event, public_trace, training_steps, write, written


def without(events: list[Event], name: str) -> list[Event]:
    return [item for item in events if not item["name"].startswith(name)]


def labels(path: Path) -> list[str]:
    return [window.label for window in step_windows(read_trace(path))]


def test_steps_of_the_profiler(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, training_steps(3)))
    assert step_windows(trace) == [
        StepWindow("ProfilerStep#5", 0.0, 98.0),
        StepWindow("ProfilerStep#6", 100.0, 198.0),
        StepWindow("ProfilerStep#7", 200.0, 298.0),
    ]
    assert choose_step(trace).label == "ProfilerStep#7"
    assert choose_step(trace, 0).label == "ProfilerStep#5"
    assert choose_step(trace, -2).label == "ProfilerStep#6"


def test_older_versions_annotate_steps_as_operators(tmp_path: Path) -> None:
    events = [event("Operator", "ProfilerStep#1", 0, 10), event("Operator", "aten::mm", 1, 3)]
    assert labels(written(tmp_path, events)) == ["ProfilerStep#1"]


def test_annotations_of_the_gpu_are_no_steps(tmp_path: Path) -> None:
    events = [
        event("gpu_user_annotation", "ProfilerStep#1", 5, 30, (0, 7)),
        event("kernel", "gemm", 5, 30, (0, 7)),
        event("cpu_op", "aten::mm", 1, 3),
    ]
    assert labels(written(tmp_path, events)) == ["whole trace"]


def test_a_stub_at_the_end_is_not_chosen(tmp_path: Path) -> None:
    events = [*training_steps(3), event("user_annotation", "ProfilerStep#8", 1300, 2), event("cpu_op", "x", 1301, 1)]
    trace = read_trace(written(tmp_path, events))
    assert len(step_windows(trace)) == 4
    assert choose_step(trace).label == "ProfilerStep#7"


def test_a_step_cut_within_its_backward_pass_is_not_chosen(tmp_path: Path) -> None:
    def operators(start: float) -> list[Event]:
        return [event("cpu_op", f"Op{number}Backward0", start + 40 + 2 * number, 1) for number in range(20)]

    events = training_steps(3) + operators(1000) + operators(1100) + operators(1200)[:4]
    assert choose_step(read_trace(written(tmp_path, events))).label == "ProfilerStep#6"


def test_a_step_of_evaluation_is_not_chosen(tmp_path: Path) -> None:
    evaluation = [event("cpu_op", "aten::linear", 1300 + number, 0.5) for number in range(30)]
    events = [*training_steps(3), event("user_annotation", "ProfilerStep#8", 1299, 50), *evaluation]
    assert choose_step(read_trace(written(tmp_path, events))).label == "ProfilerStep#7"


def test_steps_by_the_optimizer(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, without(training_steps(3), "ProfilerStep")))
    windows = step_windows(trace)
    assert [(window.start_us, window.end_us) for window in windows] == [(0.0, 85.0), (85.0, 185.0), (185.0, 285.0)]
    assert choose_step(trace) == StepWindow("step 2 (to SGD.step)", 185.0, 285.0)


def test_the_last_of_several_optimizers_ends_the_step(tmp_path: Path) -> None:
    events = [
        event("user_annotation", f"Optimizer.step#{name}.step", 100 * step + at, 5)
        for step in range(2)
        for at, name in ((10, "Adam"), (80, "SGD"))
    ]
    assert labels(written(tmp_path, events)) == ["step 0 (to SGD.step)", "step 1 (to SGD.step)"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["iteration 4", "iteration 5"], ["iteration 4", "iteration 5"]),
        (["## step 7 ##"], ["## step 7 ##"]),
        (["train_step", "train_step"], ["train_step 0", "train_step 1"]),
        (
            ["[pl][profile]run_training_batch"] * 2,
            ["[pl][profile]run_training_batch 0", "[pl][profile]run_training_batch 1"],
        ),
        (["train_step"], ["whole trace"]),
        (["forward", "forward"], ["whole trace"]),
    ],
)
def test_steps_by_annotations_of_the_loop(tmp_path: Path, given: list[str], expected: list[str]) -> None:
    events = [event("user_annotation", name, 10 * number, 8) for number, name in enumerate(given)]
    assert labels(written(tmp_path, [*events, event("cpu_op", "aten::mm", 1, 2)])) == expected


def test_a_trace_without_steps_is_a_step(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, [event("cpu_op", "aten::mm", 10, 2), event("cpu_op", "aten::mm", 20, 7)]))
    assert choose_step(trace) == StepWindow("whole trace", 0.0, 17.0)


def test_a_step_that_is_not_there_is_refused_with_a_list(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, training_steps(2)))
    for index in (2, -3):
        with pytest.raises(
            RecordError, match=rf"has no step {index}; it has 0 \(ProfilerStep#5\), 1 \(ProfilerStep#6\)"
        ):
            choose_step(trace, index)
    many = read_trace(written(tmp_path, training_steps(40)))
    with pytest.raises(RecordError, match=r"5 \(ProfilerStep#10\), …, 37 \(ProfilerStep#42\)"):
        choose_step(many, 40)


@pytest.mark.parametrize(
    ("name", "count", "chosen"),
    [
        ("hta_alexnet.json.gz", 1, "whole trace"),
        ("hta_cpu_only.json.gz", 1, "ProfilerStep#551"),
        ("hta_mi250_minitoy_train.json.gz", 2, "ProfilerStep#1"),
        ("hta_trace_diff_control.json.gz", 6, "ProfilerStep#1014"),
        ("param_linear_kineto.json.gz", 40, "step 39 (to SGD.step)"),
    ],
)
def test_steps_of_public_traces(name: str, count: int, chosen: str) -> None:
    trace = read_trace(public_trace(name))
    assert (len(step_windows(trace)), choose_step(trace).label) == (count, chosen)


def test_steps_that_overlap_are_steps_of_their_own(tmp_path: Path) -> None:
    events = [event("user_annotation", f"ProfilerStep#{number}", 100 * number, 101) for number in range(1, 5)]
    events.append(event("user_annotation", "ProfilerStep#9", 210, 20))  # inside of the second one
    trace = read_trace(written(tmp_path, [*events, event("cpu_op", "aten::mm", 110, 5)]))
    assert step_windows(trace) == [
        *(StepWindow(f"ProfilerStep#{number}", 100.0 * (number - 1), 100.0 * number) for number in range(1, 4)),
        StepWindow("ProfilerStep#4", 300.0, 401.0),
    ]
    assert local_graph(trace, 1).label == "ProfilerStep#2"


def test_iterations_that_overlap_are_steps_of_their_own(tmp_path: Path) -> None:
    events = [event("user_annotation", "train_step", 100 * number, 101) for number in range(3)]
    assert labels(written(tmp_path, [*events, event("cpu_op", "aten::mm", 110, 5)])) == [
        f"train_step {number}" for number in range(3)
    ]


def ranks_of(tmp_path: Path, *events: list[Event]) -> list[RankTrace]:
    for rank, of_rank in enumerate(events):
        write(tmp_path / f"rank-{rank}.json", of_rank)
    return read_traces([tmp_path])


def test_ranks_are_replayed_in_the_last_step_that_is_whole_on_all(tmp_path: Path) -> None:
    whole = training_steps(3)
    cut = [item for item in whole if item["ts"] <= 1200 + 5 or item["name"].startswith("ProfilerStep")]
    traces = ranks_of(tmp_path, whole, cut)
    assert [choose_step(trace).label for trace in traces] == ["ProfilerStep#7", "ProfilerStep#6"]
    assert [window.label for window in choose_steps(traces)] == ["ProfilerStep#6"] * 2
    step, notes = traced_step(ReplayQuestion([str(tmp_path)]))
    assert {local.label for local in step.ranks} == {"ProfilerStep#6"}
    assert not any("different names" in note for note in notes)


def test_steps_of_ranks_are_counted_among_those_that_all_have(tmp_path: Path) -> None:
    late = [item for item in training_steps(3) if item["ts"] >= 1100]
    traces = ranks_of(tmp_path, training_steps(3), late)
    assert [window.label for window in choose_steps(traces, 0)] == ["ProfilerStep#6"] * 2
    assert [window.label for window in choose_steps(traces, -1)] == ["ProfilerStep#7"] * 2
    with pytest.raises(RecordError, match=r"no step 2; it has 0 \(ProfilerStep#6\), 1 \(ProfilerStep#7\) in common"):
        choose_steps(traces, 2)


def test_ranks_without_a_common_label_are_chosen_by_themselves(tmp_path: Path) -> None:
    traces = ranks_of(tmp_path, training_steps(2), without(training_steps(2), "ProfilerStep"))
    assert [window.label for window in choose_steps(traces)] == ["ProfilerStep#6", "step 1 (to SGD.step)"]
