"""Whole steps: the model is the predictor's, computes the right thing, is timed, and recorded once."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from microbench import cli
from microbench.rows import Status
from microbench.steps.configuration import CONFIGS, StepConfig, read_step, read_steps
from microbench.steps.record import write_record
from tests.unit.recorded_steps import (
    FAMILIES,
    GPT,
    LLAMA,
    NO_TORCH,
    content,
    measured,
    predicted_us,
    record_of,
    recorded,
    written,
)


@pytest.mark.parametrize("config", read_steps(CONFIGS), ids=lambda config: config.name)
def test_the_model_has_the_parameters_that_the_predictor_counts(config: StepConfig) -> None:
    torch = pytest.importorskip("torch", reason=NO_TORCH)
    from microbench.steps.model import Decoder

    decoder = Decoder(config.run, "meta", torch.bfloat16)
    assert sum(weight.numel() for weight in decoder.parameters()) == config.run.stage_parameters(0)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_step_agrees_with_the_step_written_out(tmp_path: Path, family: str) -> None:
    pytest.importorskip("torch", reason=NO_TORCH)
    from microbench.steps.check import check

    fp32, bf16 = check(written(tmp_path, family, content(FAMILIES[family])).run, "cpu")
    assert (fp32.precision, bf16.precision) == ("fp32", "bf16")
    assert not fp32.failures + bf16.failures
    # An fp32 step that was as far off as a bf16 one would say that the check compares nothing.
    assert fp32.gradient_error < bf16.gradient_error / 10
    assert bf16.gradient_error > 1e-4


def _no_rotation(x: Any, rotation: Any) -> Any:
    return x


def _other_gradient(softmax: Any, targets: Any, gradient: Any) -> Any:
    return softmax.mul_(gradient)


@pytest.mark.parametrize(
    ("target", "broken"),
    [
        ("microbench.steps.model.rotated", _no_rotation),
        ("microbench.steps.model.logits_gradient", _other_gradient),
        ("microbench.steps.training.clip_grad_norm_", lambda *_: None),
        ("microbench.steps.training.LEARNING_RATE", 2e-4),
    ],
)
def test_a_step_that_computes_something_else_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, broken: Any
) -> None:
    pytest.importorskip("torch", reason=NO_TORCH)
    from microbench.steps import check

    run = check.small_copy(written(tmp_path, "llama", content(LLAMA)).run, "fp32")
    monkeypatch.setattr(target, broken)
    check.agreement.cache_clear()
    try:
        assert check.agreement(run, "cpu").failures
    finally:
        check.agreement.cache_clear()


def test_the_loss_is_torchs_cross_entropy() -> None:
    torch = pytest.importorskip("torch", reason=NO_TORCH)
    from microbench.steps.model import VocabularyLoss

    torch.manual_seed(0)
    targets = torch.randint(50, (7,))
    ours, theirs = (torch.randn(7, 50).mul_(3.0).requires_grad_() for _ in range(2))
    with torch.no_grad():
        theirs.copy_(ours)
    weight = torch.rand(7)
    losses = VocabularyLoss.apply(ours, targets)
    expected = torch.nn.functional.cross_entropy(theirs, targets, reduction="none")
    torch.testing.assert_close(losses, expected)
    (losses * weight).sum().backward()
    (expected * weight).sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad)


def test_bf16_weights_are_narrowed_fp32_weights_and_gradients_are_fp32(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason=NO_TORCH)
    from microbench.steps.training import TrainingStep

    step = TrainingStep(written(tmp_path, "gpt", content(GPT)).run, "cpu")
    before = [weight.clone() for weight in step.main_weights]
    parts: list[str] = []
    step.run(parts.append)
    assert parts == ["forward", "backward"] * 2 + ["optimizer"]
    for weight, main, old, gradient in zip(
        step.decoder.parameters(), step.main_weights, before, step.gradients(), strict=True
    ):
        assert (weight.dtype, main.dtype, gradient.dtype) == (torch.bfloat16, torch.float32, torch.float32)
        assert weight.grad is None
        assert torch.equal(weight, main.bfloat16())
        assert not torch.equal(main, old)


def test_parts_of_a_timed_step_add_up() -> None:
    pytest.importorskip("torch", reason=NO_TORCH)
    from microbench.timing import time_step

    def run(mark: Any) -> None:
        for part in ("forward", "backward", "forward", "backward", "optimizer"):
            sum(range(2000))
            mark(part)

    timed = time_step(run, "cpu")
    assert list(timed.parts_us) == ["forward", "backward", "optimizer"]
    assert min(timed.parts_us.values()) > 0
    assert sum(timed.parts_us.values()) == pytest.approx(timed.device_us)
    assert timed.wall_us >= timed.device_us


def run_steps(tmp_path: Path, *words: str) -> int:
    folders = ("--configs", str(tmp_path / "configs"), "--out", str(tmp_path / "out"))
    return cli.main(["steps", "--device", "cpu", *folders, *words])


def test_steps_are_recorded_once_and_set_beside_their_predictions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch", reason=NO_TORCH)
    configs = tmp_path / "configs"
    written(configs, "gpt", content(GPT))
    written(configs, "llama", content(LLAMA))
    written(configs, "plain", content(GPT, "fp32"))
    assert run_steps(tmp_path, "--only", "gpt") == 0
    assert run_steps(tmp_path) == 0
    assert "2 recorded, 1 were there already" in capsys.readouterr().err
    found = recorded(tmp_path / "out")
    assert set(found) == {"gpt", "llama", "plain"}
    for name, record in found.items():
        config = read_step(configs / f"{name}.yaml")
        assert (record.status, record.config_hash) == (Status.OK, config.hash)
        assert record.session.finished
        assert record.session.state_after
        assert record.versions["torch"]
        assert [one.precision for one in record.check] == (["fp32"] if name == "plain" else ["fp32", "bf16"])
        measured = record.measured
        assert measured is not None
        assert (len(measured.warm_up), len(measured.samples)) == (3, 10)
        assert measured.parameters == config.run.stage_parameters(0)
        assert measured.loss == pytest.approx(math.log(200), abs=0.5)
        for sample in measured.samples:
            parts = sample.forward_us + sample.backward_us + sample.optimizer_us
            assert parts == pytest.approx(sample.device_us, abs=0.01)

    before = {path: path.read_bytes() for path in (tmp_path / "out" / "steps").iterdir()}
    assert run_steps(tmp_path) == 0
    assert {path: path.read_bytes() for path in (tmp_path / "out" / "steps").iterdir()} == before
    changed = content(GPT)
    changed["training"]["num_micro_batches"] = 1
    written(configs, "gpt", changed)
    assert run_steps(tmp_path) == 0
    after = {path: path.read_bytes() for path in (tmp_path / "out" / "steps").iterdir()}
    assert [path.stem for path in after if after[path] != before[path]] == ["gpt"]

    capsys.readouterr()
    assert cli.main(["compare-steps", str(tmp_path / "out"), "--regressors", "H200", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    rows = {row["name"]: row for row in document["steps"]}
    assert rows["gpt"]["predicted"]["step_us"] == pytest.approx(predicted_us(configs / "gpt.yaml"))
    assert rows["plain"]["predicted"]["step_us"] == pytest.approx(predicted_us(configs / "plain.yaml"))
    assert cli.main(["compare-steps", str(tmp_path / "out"), "--regressors", "H200"]) == 0
    table = capsys.readouterr().out
    assert "llama" in table
    assert "3 steps: mean absolute error" in table


def test_no_step_is_begun_that_cannot_end_in_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch", reason=NO_TORCH)
    written(tmp_path / "configs", "gpt", content(GPT))
    assert run_steps(tmp_path, "--minutes", "0.001") == 0
    assert not (tmp_path / "out").exists()
    assert "no time left for gpt" in capsys.readouterr().err


def test_a_pace_is_learnt_from_the_last_step(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason=NO_TORCH)
    from microbench.steps.measure import ALL_STEPS, Pace

    config = read_steps(CONFIGS)[-1]
    pace = Pace(5e13, 20.0)
    assumed = pace.needed_s(config)
    pace.learn(config, measured(step_us=500_000.0), spent_s=ALL_STEPS * 0.5 + 4.0)
    assert pace.needed_s(config) == pytest.approx(ALL_STEPS * 0.5 + 4.0)
    assert pace.needed_s(config) < assumed


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"), Status.OUT_OF_MEMORY, 0),
        (RuntimeError("No available kernel. Aborting execution."), Status.ERROR, 1),
    ],
)
def test_a_failure_is_recorded_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, status: Status, code: int
) -> None:
    pytest.importorskip("torch", reason=NO_TORCH)
    from microbench.steps import measure, training

    written(tmp_path / "configs", "a", content(GPT))
    written(tmp_path / "configs", "b", content(LLAMA))
    whole = training.TrainingStep

    def failing(run: Any, device: str) -> Any:
        if not run.model.rotary_fraction:
            raise error
        return whole(run, device)

    monkeypatch.setattr(measure, "TrainingStep", failing)
    assert run_steps(tmp_path) == code
    found = recorded(tmp_path / "out")
    assert (found["a"].status, found["a"].reason, found["a"].measured) == (status, str(error), None)
    assert found["b"].status is Status.OK
    monkeypatch.undo()
    assert run_steps(tmp_path) == 0
    assert recorded(tmp_path / "out")["a"].status is Status.OK


def test_a_step_that_fails_its_check_is_timed_and_compared_with_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch", reason=NO_TORCH)
    from microbench.steps import check

    written(tmp_path / "configs", "llama", content(LLAMA))
    monkeypatch.setattr("microbench.steps.model.rotated", _no_rotation)
    check.agreement.cache_clear()
    assert run_steps(tmp_path) == 1
    check.agreement.cache_clear()
    record = recorded(tmp_path / "out")["llama"]
    assert record.status is Status.ERROR
    assert record.measured is not None
    assert "is off by" in record.reason
    assert cli.main(["compare-steps", str(tmp_path / "out"), "--regressors", "H200"]) == 0
    assert "llama: error: " in capsys.readouterr().out
    assert record.check[0].failures


def test_a_lost_device_ends_the_run_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason=NO_TORCH)
    from microbench.steps import measure

    def failing(run: Any, device: str) -> Any:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    written(tmp_path / "configs", "a", content(GPT))
    written(tmp_path / "configs", "b", content(GPT))
    monkeypatch.setattr(measure, "TrainingStep", failing)
    monkeypatch.setattr(measure, "is_lost", lambda kind: True)
    assert run_steps(tmp_path) == 1
    (record,) = recorded(tmp_path / "out").values()
    assert "illegal memory access" in record.reason


def test_a_folder_is_of_one_device(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason=NO_TORCH)
    config = written(tmp_path / "configs", "gpt", content(GPT))
    write_record(tmp_path / "out", record_of(config, measured(1.0)))
    assert run_steps(tmp_path) == 2
