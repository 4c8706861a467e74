"""A measured run beside its prediction: parts and operators add up, nothing is dropped, mismatches are said."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from predictor.core.base.errors import ConfigError
from predictor.core.costs.collectives import COLLECTIVES
from predictor.core.step.breakdown import answers
from predictor.core.step.prediction import Prediction, predict
from predictor.core.timeline.spans import Span
from predictor.evidence.verification.configurations import Configured, configured
from predictor.evidence.verification.operators import Key, compared_operators, predicted_operators, transfer_us
from predictor.evidence.verification.parts import compared_parts
from predictor.evidence.verification.runs import verified_launches
from predictor.evidence.verification.transformers import recorded
from predictor.replay.files.measured_run import MeasuredRun, read_launches
from predictor.replay.files.measured_step import COLLECTIVE, MeasuredSteps, OperatorTime, PassName
from predictor.replay.files.verified_run import read_verified_run, write_verified_run
from tests.unit.examples import full_form, short_form
from tests.unit.measured_runs import OPERATORS, loaded_of, write_launch

LAYOUTS: dict[str, dict[str, dict[str, Any]]] = {
    "one": {"parallelism": {"zero_stage": 0}},
    "ranks of all kinds": {
        "parallelism": {"tensor_parallel_size": 2, "pipeline_parallel_size": 2, "data_parallel_size": 2}
    },
    "interleaved": {"parallelism": {"pipeline_parallel_size": 4, "virtual_pipeline_parallel_size": 2}},
    "zero bubble": {"parallelism": {"pipeline_parallel_size": 2, "schedule": "zero_bubble_h1"}},
    "recomputed": {"training": {"recompute": "full"}},
    "sharded": {"parallelism": {"zero_stage": 3, "data_parallel_size": 2, "overlap_parameter_gather": True}},
    "overlapped": {"parallelism": {"zero_stage": 0, "data_parallel_size": 4, "overlap_gradient_reduction": True}},
}


def question(**sections: Any) -> Configured:
    return configured("c", full_form(**sections), Path.cwd())


def predicted(**sections: Any) -> Prediction:
    loaded = loaded_of(question(**sections))
    return predict(loaded.run, loaded.system)


def launches(
    folder: Path, configuration: Configured, operators: Sequence[OperatorTime] = (), **changes: Any
) -> list[MeasuredRun]:
    layout = loaded_of(configuration).run.layout
    ranks = [
        {"pipeline_stage": rank * layout.pipeline_parallel_size // layout.num_gpus} for rank in range(layout.num_gpus)
    ]
    for number, scale in ((1, 1.0), (2, 1.02)):
        samples = tuple(scale * us for us in (1000.0, 1010.0, 990.0))
        content = configuration.content
        write_launch(
            folder / f"run-{number}", content, layout.num_gpus, operators, ranks=ranks, samples_us=samples, **changes
        )
    return read_launches(folder)


def operator(step_pass: PassName, name: str, us: float, part: str = "") -> OperatorTime:
    return OperatorTime(step_pass=step_pass, name=name, part=part, count=1, samples_us=(us,))


@pytest.mark.parametrize("case", LAYOUTS)
def test_predicted_parts_of_a_stage_add_up_to_the_step(case: str, tmp_path: Path) -> None:
    configuration = question(**LAYOUTS[case])
    prediction = predict(loaded_of(configuration).run, loaded_of(configuration).system)
    parts = compared_parts(prediction, launches(tmp_path, configuration))
    for stage in range(len(prediction.stages)):
        of_stage = [part.predicted_us or 0.0 for part in parts if part.stage == stage]
        assert sum(of_stage) == pytest.approx(prediction.step.us, rel=1e-9)
        measured = [part.measured_us or 0.0 for part in parts if part.stage == stage]
        assert sum(measured) == pytest.approx(1010.0, rel=1e-6)


@pytest.mark.parametrize("case", LAYOUTS)
def test_no_predicted_operator_is_lost(case: str) -> None:
    """Against the answers of the breakdown, an expansion of its own; there messages count where they arrive as well."""
    configuration = question(**LAYOUTS[case])
    loaded = loaded_of(configuration)
    prediction = predict(loaded.run, loaded.system)
    listed = {
        (answer.operator.split(" (")[0], answer.direction): answer for answer in answers(prediction, loaded.system)
    }
    stages = [predicted_operators(prediction.tasks, i, loaded.system) for i in range(len(prediction.stages))]
    totals = [
        sum(calls.cost.us for key, calls in stage.items() if key.name == name)
        for stage in stages
        for name in ("ffn_up",)
    ]
    expected = listed["ffn_up", "forward"].step_us + listed["ffn_up", "backward"].step_us
    assert max(totals) == pytest.approx(expected)
    names = {key.name for stage in stages for key in stage}
    assert names == {name for name, _ in listed}


def test_messages_are_counted_where_they_are_sent() -> None:
    configuration = question(parallelism={"pipeline_parallel_size": 4, "virtual_pipeline_parallel_size": 2})
    loaded = loaded_of(configuration)
    tasks = predict(loaded.run, loaded.system).tasks
    counts = []
    for stage in range(4):
        calls = predicted_operators(tasks, stage, loaded.system)
        keys = [Key(step_pass, "point_to_point", "pipeline_parallel") for step_pass in ("forward", "backward")]
        counts.append([calls[key].count if key in calls else 0 for key in keys])
    # Four micro-batches through two chunks: the first stage has nothing before it, the last nothing behind it.
    assert counts == [[8, 4], [8, 8], [8, 8], [4, 8]]


def test_what_one_side_lacks_is_shown_with_the_reason(tmp_path: Path) -> None:
    configuration = question(**LAYOUTS["one"])
    recorded = [*OPERATORS, operator("end", "gelu", 5.0), operator("forward", "rope_concatenation", 1.0)]
    recorded.append(operator("forward", "softmax", 2.0))
    rows = verified_launches(configuration, launches(tmp_path, configuration, recorded)).record.operators
    by_key = {(row.step_pass, row.name): row for row in rows}
    assert by_key["forward", "made_up"].missing == "not predicted: no such task"
    assert by_key["end", "gelu"].missing == "not predicted: in backward and forward only"
    assert by_key["forward", "softmax"].missing == "not predicted: not in this configuration's step"
    assert by_key["backward", "gelu"].missing == "not measured"
    up = by_key["forward", "ffn_up"]
    assert (up.measured_us, up.measured_calls, up.missing) == (32.0, 8.0, "")
    assert up.predicted is not None
    assert up.predicted_calls == 32  # 8 layers, 4 micro-batches
    assert up.error == pytest.approx(up.predicted.us / 32.0 - 1.0)
    assert len(by_key) == len(rows)


def test_a_collective_of_another_purpose_is_told_apart(tmp_path: Path) -> None:
    configuration = question(parallelism={"tensor_parallel_size": 2})
    recorded = [
        operator("forward", "all_reduce", 9.0, "tensor_parallel"),
        operator("end", "all_reduce", 5.0, "data_parallel"),
    ]
    rows = verified_launches(configuration, launches(tmp_path, configuration, recorded)).record.operators
    reasons = {(row.step_pass, row.part): row.missing for row in rows if row.name == "all_reduce"}
    assert reasons["end", "data_parallel"] == "not predicted: tensor parallel only"
    assert "not measured" not in reasons.values()


def test_the_median_error_is_of_operators_that_matter(tmp_path: Path) -> None:
    configuration = question(**LAYOUTS["one"])
    loaded = loaded_of(configuration)
    calls = predicted_operators(predict(loaded.run, loaded.system).tasks, 0, loaded.system)

    def off(step_pass: PassName, name: str, factor: float) -> OperatorTime:
        return operator(step_pass, name, calls[Key(step_pass, name, "")].cost.us / factor)

    recorded = [off("forward", "ffn_up", 1.1), off("backward", "ffn_up", 0.7), off("forward", "ffn_down", 1.2)]
    step_us = 50.0 * recorded[0].samples_us[0]
    recorded.append(operator("forward", "gelu", 0.001 * step_us))
    for folder in (tmp_path / "run-1", tmp_path / "run-2"):
        write_launch(folder, configuration.content, 1, recorded, samples_us=(step_us, step_us))
    record = verified_launches(configuration, read_launches(tmp_path)).record
    assert record.compared_operators == 3
    assert record.operator_error == pytest.approx(0.2)
    assert record.noise == 0.0


def test_recomputation_is_taken_out_of_the_backward_pass(tmp_path: Path) -> None:
    configuration = question(**LAYOUTS["recomputed"])
    prediction = predict(loaded_of(configuration).run, loaded_of(configuration).system)
    plain = {part.name: part for part in compared_parts(prediction, launches(tmp_path / "a", configuration))}
    assert plain["recompute and backward"].measured_us == pytest.approx(0.6 * 1010.0)
    assert "recompute" not in plain
    recorded = [operator("recompute", "ffn_up", 220.0)]
    profiled = launches(tmp_path / "b", configuration, recorded, profiled_us=(2000.0,))
    split = {part.name: part for part in compared_parts(prediction, profiled)}
    # Half of it, as the profiled step is about twice as long.
    assert split["recompute"].measured_us == pytest.approx(110.0 * 1.01, rel=0.001)
    assert split["backward"].measured_us == pytest.approx((600.0 - 110.0) * 1.01, rel=0.001)


@pytest.mark.parametrize(
    ("recorded", "expected"),
    [
        ([("end", "data_parallel")], {("end", "data_parallel")}),
        ([("backward", "data_parallel")], {("end", "data_parallel")}),
        ([("end", "")], {("end", "")}),
    ],
)
def test_a_collective_is_matched_however_it_was_recorded(
    recorded: list[tuple[PassName, str]], expected: set[tuple[str, str]], tmp_path: Path
) -> None:
    configuration = question(**LAYOUTS["overlapped"])
    loaded = loaded_of(configuration)
    assert "all_reduce" in COLLECTIVES
    operators = [operator(step_pass, "all_reduce", 50.0, part) for step_pass, part in recorded]
    rows = compared_operators(
        predict(loaded.run, loaded.system), loaded.system, launches(tmp_path, configuration, operators)
    )
    reduces = [row for row in rows if row.name == "all_reduce"]
    assert {(row.step_pass, row.part) for row in reduces} == expected
    assert all(row.error is not None for row in reduces)


def test_a_pipeline_timed_as_a_whole_is_compared_as_a_whole(tmp_path: Path) -> None:
    configuration = question(parallelism={"pipeline_parallel_size": 2})
    prediction = predict(loaded_of(configuration).run, loaded_of(configuration).system)
    whole = {"data": 10.0, "forward": 890.0, "backward": 0.0, "optimizer": 100.0}
    compared = compared_parts(prediction, launches(tmp_path, configuration, parts=whole))
    parts = [part for part in compared if part.stage == 1]
    assert [part.name for part in parts] == ["pipeline, bubble included", "data", "optimizer", "waiting"]
    assert sum(part.predicted_us or 0.0 for part in parts) == pytest.approx(prediction.step.us)
    assert parts[0].measured_us == pytest.approx(890.0 * 1.01)
    assert sum(part.measured_us or 0.0 for part in parts) == pytest.approx(1010.0)


def test_waiting_for_other_ranks_is_no_transfer(tmp_path: Path) -> None:
    configuration = question(parallelism={"tensor_parallel_size": 2})
    reduces = operator("forward", "all_reduce", 140.0, "tensor_parallel")
    (launch, _) = launches(tmp_path, configuration, [reduces])
    key = Key("forward", "all_reduce", "tensor_parallel")
    details = {"pass": "forward", "part": "tensor_parallel"}

    def rank(durations: Sequence[float]) -> MeasuredSteps:
        spans = [
            Span("all_reduce", 0, "communication", 100.0 * i, 100.0 * i + us, category=COLLECTIVE, details=details)
            for i, us in enumerate(durations)
        ]
        return MeasuredSteps(spans[::-1], launch.provenance)

    # Either rank comes first once: 10 of 90 and 20 of 50 are the transfer.
    assert transfer_us([rank([90.0, 20.0]), rank([10.0, 50.0])], key) == pytest.approx(30.0)
    assert transfer_us([rank([90.0]), rank([10.0, 50.0])], key) == 140.0  # not the same calls
    assert transfer_us([rank([])], key) == 140.0


def test_messages_recorded_in_one_pass_are_compared_with_all(tmp_path: Path) -> None:
    configuration = question(parallelism={"pipeline_parallel_size": 3}, model={"num_layers": 6})
    loaded = loaded_of(configuration)
    recorded = [operator("forward", "point_to_point", 50.0, "pipeline_parallel")]
    rows = compared_operators(
        predict(loaded.run, loaded.system), loaded.system, launches(tmp_path, configuration, recorded)
    )
    calls = [row.predicted_calls for row in rows if row.name == "point_to_point"]
    assert calls == [4, 8, 4]


def test_a_verified_run_is_a_record_that_others_read(tmp_path: Path) -> None:
    configuration = question(**LAYOUTS["ranks of all kinds"])
    run = verified_launches(configuration, launches(tmp_path, configuration, OPERATORS, profiled_us=(1100.0,)))
    record = read_verified_run(write_verified_run(tmp_path, run.record))
    assert record == run.record
    assert record.configuration == configuration.content
    assert (record.device, record.threads, record.num_gpus) == ("a made-up processor", 1, 8)
    assert record.noise == pytest.approx(0.0198, abs=1e-4)
    assert record.measured_us == pytest.approx(1010.0)
    assert [launch.samples_us[0] for launch in record.launches] == [1000.0, 1020.0]
    assert {part.stage for part in record.parts} == {row.stage for row in record.operators} == {0, 1}


def test_a_run_of_another_layout_is_refused(tmp_path: Path) -> None:
    configuration = question(**LAYOUTS["one"])
    other = question(parallelism={"data_parallel_size": 2})
    with pytest.raises(ConfigError, match="c ran on 1 ranks; its configuration has 2"):
        verified_launches(other, launches(tmp_path, configuration))
    piped = question(parallelism={"pipeline_parallel_size": 2})
    write_launch(tmp_path / "flat" / "run-1", piped.content, 2)
    with pytest.raises(ConfigError, match="pipeline stages 0; its configuration has 2"):
        verified_launches(piped, read_launches(tmp_path / "flat"))


def test_a_configuration_is_the_same_on_any_system_and_in_any_form() -> None:
    here, there = full_form(), full_form(system="Vista")
    assert configured("c", here, Path.cwd()).config_hash == configured("c", there, Path.cwd()).config_hash
    said = full_form(parallelism={"tensor_parallel_size": 1})
    assert configured("c", said, Path.cwd()).config_hash == configured("c", here, Path.cwd()).config_hash
    other = full_form(training={"micro_batch_size": 1})
    assert configured("c", other, Path.cwd()).config_hash != configured("c", here, Path.cwd()).config_hash
    short = configured("c", short_form(gpus_per_node=1), Path.cwd(), "Vista")
    assert short.workload.system.name == "Vista"
    again = configured("c", recorded({**short.content, "system": "Vista"}), Path.cwd())
    assert again.content == short.content
    assert again.workload.predict().step == short.workload.predict().step
    without = {key: value for key, value in here.items() if key != "system"}
    assert configured("c", without, Path.cwd(), "Vista").workload.system.name == "Vista"
    with pytest.raises(ConfigError, match="c: system is missing; --system NAME"):
        configured("c", without, Path.cwd())
