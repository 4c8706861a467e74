"""The documented interface of the trainer, its settings, and what it says when something is wrong."""

from __future__ import annotations

import json
import logging
import math
import os
import signal
import subprocess
import sys
import time
import warnings
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from model_training_framework.config import ExperimentConfig
from model_training_framework.trainer import (
    CheckpointTimeoutError,
    GenericTrainer,
    GenericTrainerConfig,
    PreemptionTimeoutError,
    ResumeState,
    TrainerError,
    TrainerPhase,
    TrainingCallback,
)
from model_training_framework.trainer.reporting import ProgressBar
from model_training_framework.trainer.step_log import StepLog
from tests.trainer.job import Net, Scenario, config_for, loaders
from tests.trainer.runs import RESUMABLE, logs, start

ROOT = Path(__file__).resolve().parents[2]
SCENARIO = Scenario(samples=16, accumulation=2, max_epochs=2, validate_every_n_steps=None, save_every_n_steps=None)


def fit(trainer: GenericTrainer, data: Any = None, model: Any = None, val: Any = None) -> None:
    torch.manual_seed(0)
    model = model or Net(has_statistics=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    given = loaders(SCENARIO) if data is None else (data, val)
    trainer.fit(model, optimizer, *given)


class Calls(TrainingCallback):
    def __init__(self) -> None:
        self.seen: list[str] = []

    def on_training_start(self, trainer: Any) -> None:
        self.seen.append("start")

    def on_training_end(self, trainer: Any, logs: dict[str, Any]) -> None:
        assert logs["global_step"] == 4
        self.seen.append("end")

    def on_epoch_start(self, trainer: Any, epoch: int) -> None:
        self.seen.append(f"epoch {epoch}")

    def on_epoch_end(self, trainer: Any, epoch: int, logs: dict[str, Any]) -> None:
        assert logs.keys() >= {"val_loss", "train_loss", "lr"}
        self.seen.append(f"epoch {epoch} ends")

    def on_batch_start(self, trainer: Any, batch_idx: int) -> None:
        self.seen.append(f"batch {batch_idx}")

    def on_batch_end(self, trainer: Any, batch_idx: int, logs: dict[str, Any]) -> None:
        assert math.isfinite(logs["loss"])
        self.seen.append(f"batch {batch_idx} ends")


def test_hooks_are_called_in_order(tmp_path: Path) -> None:
    trainer = GenericTrainer(config_for(SCENARIO, tmp_path))
    calls = Calls()
    trainer.add_callback(calls)
    fit(trainer)
    batches = [text for batch in range(4) for text in (f"batch {batch}", f"batch {batch} ends")]
    epochs = [text for epoch in range(2) for text in (f"epoch {epoch}", *batches, f"epoch {epoch} ends")]
    assert calls.seen == ["start", *epochs, "end"]


def test_phases_and_states_are_those_of_the_specification() -> None:
    named = {
        "INIT", "TRAIN_START_EPOCH", "TRAIN_BATCH_FORWARD", "TRAIN_BATCH_BACKWARD", "TRAIN_BATCH_OPTIM_STEP",
        "VAL_START_EPOCH", "VAL_BATCH_FORWARD", "EPOCH_END", "TRAINING_COMPLETE",
    }  # fmt: skip
    assert named <= set(TrainerPhase.__members__)
    state = ResumeState(phase=TrainerPhase.INIT, epoch=0, global_step=0)
    names = ["phase", "epoch", "global_step", "version", "train", "val", "rng", "timestamp"]
    assert [one.name for one in fields(ResumeState)] == names
    assert (state.version, state.train, state.val, state.rng, state.timestamp) == ("v2.0", None, None, None, 0.0)


def test_training_learns_and_logs_every_step(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64, 3, generator=generator)
    data = DataLoader(TensorDataset(x, x @ torch.tensor([[1.0], [2.0], [3.0]])), 8, shuffle=True)
    config = GenericTrainerConfig(max_epochs=6, accelerator="cpu", experiment_dir=tmp_path, tensorboard=True)
    fit(GenericTrainer(config), data, nn.Linear(3, 1))
    lines = [json.loads(line) for line in (tmp_path / "steps.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, 49))
    assert all(line.keys() >= {"loss", "lr", "step_time_s", "phase", "epoch"} for line in lines)
    assert lines[-1]["loss"] < lines[0]["loss"] / 100
    assert list((tmp_path / "tensorboard").glob("events*"))


def test_accumulation_is_the_mean_over_its_batches(tmp_path: Path) -> None:
    x, y = torch.randn(12, 3), torch.randn(12, 1)
    weights = []
    for size, accumulation in ((4, 1), (2, 2)):
        torch.manual_seed(0)
        model = nn.Linear(3, 1)
        config = GenericTrainerConfig(
            max_epochs=1,
            accelerator="cpu",
            experiment_dir=tmp_path / str(size),
            gradient_accumulation_steps=accumulation,
        )
        data = DataLoader(TensorDataset(x, y), size)
        GenericTrainer(config).fit(model, torch.optim.SGD(model.parameters(), 0.1), data)
        weights.append(model.weight.detach())
    assert torch.allclose(*weights, atol=1e-6)


def test_validation_does_not_change_training(tmp_path: Path) -> None:
    for name, scenario in {"with": SCENARIO, "without": Scenario(samples=16, has_validation=False)}.items():
        trainer = GenericTrainer(config_for(scenario, tmp_path / name))
        fit(trainer, loaders(SCENARIO)[0], None, loaders(scenario)[1])
    lines = [
        [json.loads(line).get("loss") for line in (tmp_path / name / "steps.jsonl").read_text().splitlines()]
        for name in ("with", "without")
    ]
    assert [loss for loss in lines[0] if loss] == lines[1]


def test_metrics_are_means_over_samples(tmp_path: Path) -> None:
    class Own(GenericTrainer):
        def validation_step(self, batch: Any, batch_idx: int) -> dict[str, Any]:
            return {"mean": batch[0].mean(), "name": "text is left out"}

    val = DataLoader(TensorDataset(torch.arange(5.0), torch.zeros(5)), 2)
    trainer = Own(config_for(SCENARIO, tmp_path))
    fit(trainer, loaders(SCENARIO)[0], None, val)
    assert trainer.metrics == {"val_mean": 2.0}


def test_modes_of_modules_are_put_back_after_validation(tmp_path: Path) -> None:
    model = Net(has_statistics=True)
    model.norm.eval()  # frozen statistics, as in fine-tuning
    before = model.norm.running_mean.clone()
    fit(GenericTrainer(config_for(SCENARIO, tmp_path)), None, model)
    assert not model.norm.training
    assert model.blocks.training
    assert torch.equal(model.norm.running_mean, before)


@pytest.mark.parametrize(
    ("batch", "model", "message"),
    [
        ([torch.ones(2), torch.ones(2), torch.ones(2)], nn.Identity(), r"a batch is a list of 3.*override training_st"),
        ([torch.ones(2, 3), torch.ones(2)], nn.Linear(3, 3), r"float32\[2, 3\] and targets float32\[2\] have no obvio"),
        ({"input": torch.ones(2, 3)}, nn.Linear(3, 3), r"output float32\[2, 3\] has no loss"),
    ],
)
def test_a_batch_without_an_obvious_loss_is_said(tmp_path: Path, batch: Any, model: Any, message: str) -> None:
    model = model if any(True for _ in model.parameters()) else nn.Linear(2, 2)
    with pytest.raises(TrainerError, match=message):
        fit(GenericTrainer(config_for(SCENARIO, tmp_path)), [batch], model)


def test_what_a_step_returns_is_checked(tmp_path: Path) -> None:
    class NoLoss(GenericTrainer):
        def training_step(self, batch: Any, batch_idx: int) -> dict[str, Any]:
            return {"los": 1.0}

    with pytest.raises(TrainerError, match=r"training_step\(\) returned loss NoneType; it must be a scalar tensor"):
        fit(NoLoss(config_for(SCENARIO, tmp_path)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_epochs": None}, "max_epochs and max_steps are both None; give one"),
        ({"gradient_accumulation_steps": 0}, "gradient_accumulation_steps is 0; it must be at least 1"),
        ({"max_grad_norm": -1.0}, "max_grad_norm is -1.0; it must be greater than 0"),
        ({"mode": "most"}, "mode is 'most'; expected min or max"),
        ({"precision": "fp7"}, "precision fp7"),
    ],
)
def test_settings_are_checked(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(TrainerError, match=message):
        GenericTrainer(config_for(SCENARIO, tmp_path, **changes))


def test_wandb_that_is_missing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(TrainerError, match=r"wandb is asked for, but .*pip install wandb"):
        fit(GenericTrainer(config_for(SCENARIO, tmp_path, wandb={"mode": "offline"})))


def test_saving_within_a_step_is_an_error(tmp_path: Path) -> None:
    class Saves(GenericTrainer):
        def training_step(self, batch: Any, batch_idx: int) -> dict[str, Any]:
            self.save_checkpoint()
            return super().training_step(batch, batch_idx)

    with pytest.raises(TrainerError, match="was called within a step or before fit"):
        fit(Saves(config_for(SCENARIO, tmp_path)))


def test_a_callback_saves_and_stops(tmp_path: Path) -> None:
    class Saves(TrainingCallback):
        path: Path | None = None

        def on_batch_end(self, trainer: Any, batch_idx: int, logs: dict[str, Any]) -> None:
            if logs["global_step"] == 2 and self.path is None:
                self.path = trainer.save_checkpoint()
                trainer.stop()

    trainer, saves = GenericTrainer(config_for(SCENARIO, tmp_path, save_top_k=-1)), Saves()
    trainer.add_callback(saves)
    fit(trainer)
    assert trainer.state.global_step == 2
    assert saves.path is not None
    state = GenericTrainer(config_for(SCENARIO, tmp_path)).load_checkpoint(saves.path)
    assert (state.global_step, state.train and state.train.batch_idx, state.rng is not None) == (2, 4, True)


def experiment(**changes: Any) -> ExperimentConfig:
    content: dict[str, Any] = {
        "experiment_name": "one",
        "model": {"name": "net"},
        "training": {"batch_size": 4, "learning_rate": 0.1, "epochs": 3, "max_grad_norm": 1.0, "precision": "bf16"},
        "data": {"dataset_name": "none"},
        "optimizer": {"name": "sgd"},
        "checkpoint": {"save_every_n_steps": 7, "monitor": "val_mean", "mode": "max", "save_top_k": 5},
        "preemption": {"timeout_minutes": 2, "grace_period_seconds": 30},
        "seed": 4,
    }
    return ExperimentConfig.from_dict({**content, **changes})


def test_settings_come_from_an_experiment(tmp_path: Path) -> None:
    config = GenericTrainerConfig.from_experiment(experiment(), tmp_path, accelerator="cpu")
    assert (config.max_epochs, config.max_grad_norm, config.precision, config.seed) == (3, 1.0, "bf16-mixed", 4)
    assert (config.save_every_n_steps, config.monitor, config.mode, config.save_top_k) == (7, "val_mean", "max", 5)
    assert (config.checkpoint_timeout_seconds, config.grace_period_seconds) == (120.0, 30.0)
    assert config.checkpoint_folder == tmp_path / "checkpoints"
    assert config.description["experiment_name"] == "one"
    split = {"batch_size": 4, "learning_rate": 0.1, "epochs": 3, "tensor_parallel_size": 2}
    with pytest.raises(TrainerError, match=r"training.tensor_parallel_size is 2; .*override"):
        GenericTrainerConfig.from_experiment(experiment(training=split), tmp_path)


SCRIPT = """
import sys, time, torch
from torch import nn
from model_training_framework.trainer import GenericTrainer, GenericTrainerConfig

class Slow(GenericTrainer):
    def training_step(self, batch, batch_idx):
        time.sleep(0.02)
        print(batch_idx, flush=True)
        return super().training_step(batch, batch_idx)

torch.manual_seed(0)
model = nn.Linear(2, 1)
samples = torch.utils.data.TensorDataset(torch.ones(40, 2), torch.ones(40, 1))
data = torch.utils.data.DataLoader(samples, 1, num_workers=1)
config = GenericTrainerConfig(max_epochs=1, accelerator="cpu", devices=1, experiment_dir=sys.argv[1])
Slow(config).fit(model, torch.optim.SGD(model.parameters(), 0.01), data)
"""


def test_a_script_whose_whole_group_is_signalled_leaves_with_75_and_goes_on(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [sys.executable, str(tmp_path / "train.py"), str(tmp_path)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as first:
        assert first.stdout
        assert first.stdout.readline() == "0\n"
        os.killpg(first.pid, signal.SIGTERM)  # as Slurm does: workers get it too
        rest, errors = first.communicate(timeout=60)
    assert first.returncode == RESUMABLE, errors
    assert "SIGTERM: saved" in errors
    assert "exit 75, to be resumed" in errors
    done = 1 + len(rest.split())
    second = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert [int(line) for line in second.stdout.split()] == list(range(done, 40))


def test_a_rank_that_does_not_come_to_a_checkpoint_is_said(tmp_path: Path) -> None:
    assert issubclass(CheckpointTimeoutError, TrainerError)
    assert issubclass(PreemptionTimeoutError, TrainerError)
    scenario = Scenario(ranks=2, samples=16, late_s=30.0)
    started = time.monotonic()
    assert 1 in start(scenario, tmp_path)
    assert time.monotonic() - started < 30.0
    assert "CheckpointTimeoutError" in logs(tmp_path)
    assert "waited for the others for up to 2 s (checkpoint_timeout_seconds)" in logs(tmp_path)


def test_lines_that_a_full_disk_refuses_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    log = StepLog(tmp_path / "steps.jsonl")
    log.open(0)
    log.add({"step": 1, "loss": math.nan})
    log.write()
    stream = log._stream
    with Path("/dev/full").open("ab", buffering=0) as full:
        monkeypatch.setattr(log, "_stream", full)
        log.add({"step": 2})
        log.write()
        log.write()
    monkeypatch.setattr(log, "_stream", stream)
    log.add({"step": 3})
    log.close()
    lines = (tmp_path / "steps.jsonl").read_text().splitlines()
    assert lines == ['{"step": 1, "loss": null}', '{"step": 2}', '{"step": 3}']
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_lines_behind_the_resumed_one_and_half_lines_are_dropped(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    path.write_text("1\n2\n3\n4")
    log = StepLog(path)
    log.open(2)
    log.add({})
    log.close()
    assert path.read_text() == "1\n2\n{}\n"
    path.write_text("1\n2")
    log.open(2)
    log.close()
    assert path.read_text() == "1\n"


def test_a_progress_bar_is_for_terminals_only(tmp_path: Path) -> None:
    class Terminal:
        def __init__(self, is_terminal: bool) -> None:
            self.text, self.is_terminal = "", is_terminal

        def isatty(self) -> bool:
            return self.is_terminal

        def write(self, text: str) -> None:
            self.text += text

        def flush(self) -> None:
            pass

    for is_terminal in (True, False):
        terminal: Any = Terminal(is_terminal)
        bar = ProgressBar(True, terminal)
        bar.show(5, 10, "loss 1")
        bar.show(6, 10, "loss 0")  # too soon after
        bar.close()
        assert terminal.text == ("\r[" + 12 * "#" + 12 * "." + "] step 5/10 loss 1\x1b[K\n" if is_terminal else "")


def test_forward_and_gradients_are_the_bare_models(tmp_path: Path) -> None:
    trainer = GenericTrainer(config_for(SCENARIO, tmp_path))
    torch.manual_seed(0)
    model, x = Net(has_statistics=False).eval(), torch.randn(4, 6)
    seen: list[Any] = []
    expected = model(x)
    expected.sum().backward()
    gradients = [weight.grad.clone() for weight in model.parameters()]
    model.zero_grad()
    wrapped, _ = trainer.set_up_model(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for module in (model, wrapped):
        module.register_forward_hook(lambda *_: seen.append(1))
    found = wrapped(x)
    trainer.fabric.backward(found.sum())
    assert torch.equal(found, expected)
    assert all(torch.equal(weight.grad, grad) for weight, grad in zip(model.parameters(), gradients, strict=True))
    assert len(seen) == 2
    assert wrapped.module is model


def test_a_run_beside_an_installed_slurm_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "srun").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        GenericTrainer(config_for(SCENARIO, tmp_path))
    assert not [str(warning.message) for warning in heard if "srun" in str(warning.message)]
