"""Measured steps beside their predictions: what is read, compared and summarized, on made-up measurements."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from predictor.core.base.errors import ConfigError
from predictor.evidence.published.runs import iteration_seconds, published_runs
from predictor.evidence.published.tables import STEPS
from predictor.evidence.verification.measured import Compared, MeasuredStep, fastest, summary
from tests.accuracy.compare_steps import compare, components
from tests.accuracy.step_tables import COMPONENTS, measured_components, measured_steps
from tests.accuracy.text import components_text, jobs_text, published_text

ROW = {
    "group": "gpumodeling25",
    "system": "NERSC Perlmutter",
    "framework": "GPT-NeoX + DeepSpeed",
    "model": "LLaMA, RMSNorm, rotary 0.5",
    "attention": "flash_attention",
    "layers": "8",
    "hidden": "2048",
    "heads": "16",
    "seq": "2048",
    "ffn": "8192",
    "vocab": "50688 (padded)",
    "n_gpus": "8",
    "gpus_per_node": "4",
    "tp": "2",
    "pp": "2",
    "dp": "2",
    "micro_batch": "4",
    "grad_accum": "8",
    "precision": "fp16",
    "recompute": "full",
    "zero_fsdp": "ZeRO-1",
    "notes": "job p/q/1; synchronize_each_layer",
    "stat": "min",
    "derived_step_time_s": "1.5",
}


def write(path: Path, rows: list[dict[str, str]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    other = {"system": "a cluster of another GPU", "derived_step_time_s": "9"}
    write(tmp_path / STEPS, [ROW, ROW | {"derived_step_time_s": "1.4"}, ROW | {"stat": "median"}, ROW | other])
    part = {"job": "p/q/1", "component": "encoder_fwd", "measured_us_by_stage_first_middle_last": "[900.0, 1000.0]"}
    whole = {"job": "p/q/1", "component": "pp_p2p", "measured_us_by_stage_first_middle_last": "80"}
    write(tmp_path / COMPONENTS, [part | {"authors_prediction_us": "950"}, whole | {"authors_prediction_us": ""}])
    return tmp_path


def test_a_table_becomes_configurations(folder: Path) -> None:
    steps = list(measured_steps(folder))
    assert [(step.seconds, step.statistic) for step in steps] == [(1.5, "min"), (1.4, "min"), (1.5, "median")]
    assert steps[0].label == "gpumodeling25: p/q/1"
    assert steps[0].config["model"]["rotary_fraction"] == 0.5
    assert steps[0].config["parallelism"]["zero_stage"] == 1
    assert fastest(steps) == [steps[1]]


def test_a_measured_step_is_compared_whole_and_in_parts(folder: Path) -> None:
    step = next(iter(measured_steps(folder)))
    row = compare(step)
    assert row.error == pytest.approx(row.seconds / 1.5 - 1.0)
    middle = replace(row, step=replace(step, seconds=row.seconds))
    assert middle.is_inside
    assert not replace(row, step=replace(step, seconds=100.0 * row.seconds)).is_inside
    assert components(row)["update"] == [row.prediction.step.us]
    measured = list(measured_components(folder))
    assert [part.reference for part in measured] == [[950.0], []]
    lines = list(components_text([row], measured))
    assert len(lines) == 3
    assert lines[1].endswith(" +0.0%")  # 950 against the median of 900 and 1000
    assert list(jobs_text([middle]))[1].split()[3] == "+0.0%"


def test_errors_are_summarized(folder: Path) -> None:
    row = compare(next(iter(measured_steps(folder))))

    def off(factor: float) -> Compared:
        return replace(row, step=replace(row.step, seconds=row.seconds / factor))

    found = summary([off(1.0), off(3.0), off(0.5)])
    values = [found.mape, found.bias, found.least, found.most, found.coverage]
    assert values == pytest.approx([2.5 / 3, 0.5, -0.5, 2.0, 1 / 3])
    assert list(published_text([off(3.0), off(0.5)]))[-1] == "gpumodeling25: MAPE 125.0%"


def test_a_configuration_of_other_gpus_is_refused() -> None:
    step: MeasuredStep = published_runs()[0]
    with pytest.raises(ConfigError, match="ran on 64 GPUs; its configuration has 32"):
        compare(replace(step, num_gpus=64))


def test_a_published_throughput_becomes_a_time() -> None:
    # 96 B s l h² × (1 + s/6h + V/16lh) FLOP at 1 TFLOP/s on one GPU.
    model = {"hidden_size": 1024, "num_layers": 2, "sequence_length": 2048, "vocab_size": 51200}
    config = {"model": model, "training": {"global_batch_size": 4}}
    expected = 96 * 4 * 2048 * 2 * 1024**2 * (1 + 2048 / 6144 + 51200 / 32768) / 1e12
    assert iteration_seconds(config, 1, 1.0) == pytest.approx(expected)
