"""Casts, statistics, and the way from a trace in one precision to a step in another."""

from __future__ import annotations

import json
from math import sqrt
from pathlib import Path

import pytest

from microbench import cli
from predictor.replay.precision.indicator import read_statistics
from predictor.replay.precision.measured_costs import read_measured_costs
from tests.unit.recorded_steps import NO_TORCH


@pytest.mark.parametrize(("source", "target"), [("fp32", "bf16"), ("bf16", "int8"), ("int8", "fp32"), ("fp8", "int8")])
def test_a_cast_keeps_values_as_far_as_its_precisions_can(source: str, target: str) -> None:
    torch = pytest.importorskip("torch", reason=NO_TORCH)
    from microbench.traced.casts import DTYPES, cast_of

    dtypes = {**DTYPES, "fp8": torch.float8_e4m3fn}
    scale = torch.tensor(0.05)
    values = torch.tensor([-2.0, -0.5, 0.0, 1.0, 3.0])
    stored = values / scale if source == "int8" else values
    cast = cast_of(source, target, dtypes, scale)(stored.to(dtypes[source]))
    assert cast.dtype is dtypes[target]
    restored = cast.float() * scale if target == "int8" else cast.float()
    assert torch.allclose(restored, values, atol=0.03)


def test_casts_are_measured_and_fitted(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason=NO_TORCH)
    out = tmp_path / "casts.json"
    assert cli.main(["casts", "--device", "cpu", "--smallest", "12", "--largest", "13", "--out", str(out)]) == 0
    costs = read_measured_costs(out)
    assert {(cast.cast_from, cast.cast_to) for cast in costs.casts} >= {("fp32", "bf16"), ("int8", "fp32")}
    assert all(cast.us(2**13) > 0.0 and [s.numel for s in cast.samples] == [2**12, 2**13] for cast in costs.casts)


def test_statistics_are_those_of_the_tensors(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason=NO_TORCH)
    from microbench.traced.models import make_inputs
    from microbench.traced.settings import settings_of

    out = tmp_path / "statistics.json"
    assert cli.main(["statistics", "tiny", "--device", "cpu", "--steps", "2", "--out", str(out)]) == 0
    statistics = read_statistics(out)
    assert [entry.label for entry in statistics.operators] == ["aten::conv2d.0", "aten::conv2d.1", "aten::linear.0"]
    first = statistics.operators[0]
    images = make_inputs(settings_of({"model": "tiny"}).input_data, 0, "cpu")["pixel_values"]
    assert first.input.numel == images.numel()
    assert first.input.norm == pytest.approx(sqrt(float(images.square().sum())), rel=1e-5)
    assert first.input.largest == pytest.approx(float(images.abs().max()))
    assert all(e.weight and e.weight_gradient and e.output_gradient for e in statistics.operators)
    assert first.module == "layers.0"


def test_a_model_is_predicted_in_both_directions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch", reason=NO_TORCH)
    from microbench.device import find_device
    from microbench.traced import compare_precisions

    monkeypatch.setattr(compare_precisions, "SIZES", {"tiny": {"batch": 2}})
    monkeypatch.setattr(compare_precisions, "CAST_EXPONENTS", range(8, 10))
    monkeypatch.setattr(compare_precisions, "STEPS", 1)
    rows = compare_precisions.compare(["tiny"], find_device("cpu"), tmp_path, False, print)
    said = capsys.readouterr().out
    assert "not measured" not in said
    assert [(row.source, row.target) for row in rows] == [("fp32", "bf16"), ("bf16", "fp32")]
    lower, back = rows
    assert lower.operators == back.operators > 4
    assert lower.casts > 0  # weights are cast where they are used
    assert back.casts == 0
    assert all(row.predicted_us > 0.0 for row in rows)
    again = compare_precisions.compare(["tiny"], find_device("cpu"), tmp_path, True, print)
    assert again == rows
    costs = json.loads((tmp_path / "tiny" / "costs.json").read_text())
    convolutions = [row for row in costs["operators"] if row["operator"] == "aten::conv2d"]
    passes = {(row["precision"], row["step_pass"]) for row in convolutions}
    assert passes == {(p, s) for p in ("fp32", "bf16") for s in ("forward", "backward")}
