"""Checkpoints are whole or not there, hold no code, and damage to one costs the steps since the one before."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from model_training_framework.trainer import (
    CheckpointError,
    GenericTrainer,
    TrainerError,
    TrainerPhase,
    TrainingCallback,
)
from model_training_framework.trainer.checkpoint_files import read_part, write_part
from model_training_framework.trainer.checkpoint_store import read_manifest
from tests.trainer.job import Net, Scenario, config_for, loaders

SCENARIO = Scenario(samples=16, accumulation=1, validate_every_n_steps=None, save_every_n_steps=None)


def trainer_for(folder: Path, **changes: Any) -> GenericTrainer:
    return GenericTrainer(config_for(SCENARIO, folder, **changes))


def fit(trainer: GenericTrainer, model: Any = None) -> Any:
    torch.manual_seed(0)
    model = model or Net(has_statistics=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    trainer.fit(model, optimizer, *loaders(SCENARIO))
    return model


def checkpoints(folder: Path) -> list[Path]:
    return sorted((folder / "checkpoints").glob("step-*"))


def damage_byte(path: Path, position: int = -50) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def lose_bytes(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


@pytest.mark.parametrize("name", ["shared.pt", "rank-00000.pt", "manifest.json"])
@pytest.mark.parametrize("harm", [damage_byte, lose_bytes, Path.unlink], ids=["bit", "short", "gone"])
def test_a_damaged_one_is_said_and_the_one_before_is_taken(
    tmp_path: Path, name: str, harm: Any, caplog: pytest.LogCaptureFixture
) -> None:
    model = fit(trainer_for(tmp_path, max_epochs=2))
    last, before = checkpoints(tmp_path)[-1], checkpoints(tmp_path)[-2]
    lines = (tmp_path / "steps.jsonl").read_text().splitlines()
    harm(last / name)
    state = trainer_for(tmp_path).load_checkpoint()
    assert (state.global_step, state.epoch) == (4, 1) == (read_manifest(before).global_step, 1)
    warning = next(record.message for record in caplog.records if record.levelno == logging.WARNING)
    assert str(last) in warning
    assert warning.endswith("going back to the one before")
    again = fit(trainer_for(tmp_path, max_epochs=2))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    assert len((tmp_path / "steps.jsonl").read_text().splitlines()) == len(lines)


def test_a_given_one_that_is_damaged_is_an_error(tmp_path: Path) -> None:
    fit(trainer_for(tmp_path, max_epochs=1))
    path = checkpoints(tmp_path)[-1]
    damage_byte(path / "shared.pt")
    with pytest.raises(CheckpointError, match=r"is damaged: shared.pt has CRC-32"):
        trainer_for(tmp_path).load_checkpoint(path)
    with pytest.raises(CheckpointError, match=r"nowhere is no checkpoint"):
        trainer_for(tmp_path).load_checkpoint(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match="has no checkpoint that can be loaded"):
        trainer_for(tmp_path / "empty").load_checkpoint()


class Malice:
    def __reduce__(self) -> Any:
        return (exec, ("raise SystemExit('code from a file ran')",))


def test_reading_runs_no_code(tmp_path: Path) -> None:
    torch.save({"resume": Malice()}, tmp_path / "part")
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_part(tmp_path / "part")


def test_what_could_not_be_read_again_is_refused_before_it_is_written(tmp_path: Path) -> None:
    class Own(TrainingCallback):
        def state_dict(self) -> dict[str, Any]:
            return {"best": [np.float64(1.0)]}

    trainer = trainer_for(tmp_path, max_epochs=1)
    trainer.add_callback(Own())
    with pytest.raises(TrainerError, match=r"state\['callbacks'\]\['0 .*Own'\]\['best'\]\[0\] is a numpy.float64"):
        fit(trainer)


def test_best_and_last_are_kept(tmp_path: Path) -> None:
    class Scripted(GenericTrainer):
        def validation_step(self, batch: Any, batch_idx: int) -> dict[str, Any]:
            return {"loss": [5.0, 1.0, 4.0, 2.0, 3.0, 6.0, 7.0][self.state.epoch]}

    fit(Scripted(config_for(SCENARIO, tmp_path, max_epochs=7, save_top_k=2)))
    kept = {read_manifest(path).metrics["val_loss"] for path in checkpoints(tmp_path)}
    # 1 and 2 are the best; epoch 6 of 7 and the end are the last two.
    assert kept == {1.0, 2.0, 6.0, 7.0}


def test_leftovers_of_a_kill_are_removed(tmp_path: Path) -> None:
    left = tmp_path / "checkpoints" / ".building-0001-999"
    left.mkdir(parents=True)
    (left / "shared.pt").write_bytes(b"half")
    fit(trainer_for(tmp_path, max_epochs=1))
    assert not left.exists()


def test_another_model_is_named(tmp_path: Path) -> None:
    fit(trainer_for(tmp_path, max_epochs=1))
    larger, wider = Net(has_statistics=True), Net(has_statistics=True)
    larger.extra = nn.Linear(2, 2)
    wider.outlet = nn.Linear(12, 4)
    with pytest.raises(CheckpointError, match=r"of another model: it lacks extra\.bias"):
        fit(trainer_for(tmp_path, max_epochs=1), larger)
    with pytest.raises(CheckpointError, match=r"outlet.weight is \[3, 12\], here \[4, 12\]"):
        fit(trainer_for(tmp_path, max_epochs=1), wider)


def test_a_finished_run_does_nothing_and_a_longer_one_goes_on(tmp_path: Path) -> None:
    whole = fit(trainer_for(tmp_path / "whole", max_epochs=2))
    fit(trainer_for(tmp_path / "parts", max_epochs=1))
    before = checkpoints(tmp_path / "parts")
    trainer = trainer_for(tmp_path / "parts", max_epochs=1)
    fit(trainer)
    assert trainer.state.phase is TrainerPhase.TRAINING_COMPLETE
    assert checkpoints(tmp_path / "parts") == before
    longer = fit(trainer_for(tmp_path / "parts", max_epochs=2))
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), longer.parameters(), strict=True))
    steps = fit(trainer_for(tmp_path / "steps", max_epochs=None, max_steps=3))
    longer = fit(trainer_for(tmp_path / "steps", max_epochs=2))
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), longer.parameters(), strict=True))
    assert not torch.equal(next(steps.parameters()), next(longer.parameters()))


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Return a small file system, which is full as soon as ``full`` is there."""
    if shutil.which("mount") is None or os.geteuid():
        pytest.skip("needs root and mount, for a small file system")
    folder = tmp_path / "disk"
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(folder)], check=False)
    if done.returncode:
        pytest.skip("mount is not permitted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


class FillsDisk(TrainingCallback):
    """Takes the rest of the disk in one epoch, and gives it back in a later one; None: never."""

    def __init__(self, folder: Path, at: int, until: int | None) -> None:
        self.folder, self.at, self.until = folder, at, until

    def on_epoch_start(self, trainer: Any, epoch: int) -> None:
        if epoch == self.at:
            with (self.folder / "rest").open("wb", 0) as rest, suppress(OSError):
                while rest.write(bytes(512)):
                    pass
        elif epoch == self.until:
            (self.folder / "rest").unlink()


def test_a_full_disk_costs_a_checkpoint_and_nothing_else(
    disk: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reference = fit(trainer_for(tmp_path / "reference", max_epochs=4))
    trainer = trainer_for(disk, max_epochs=4, save_top_k=0)
    trainer.add_callback(FillsDisk(disk, at=1, until=2))
    model = fit(trainer)
    warnings = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    failed = next(text for text in warnings if text.startswith("checkpoint of step 8"))
    assert "No space left on device; older checkpoints are unchanged; training goes on" in failed
    assert "\n" not in failed
    assert all(torch.equal(a, b) for a, b in zip(reference.parameters(), model.parameters(), strict=True))
    lines = [(path / "steps.jsonl").read_text().count("\n") for path in (disk, tmp_path / "reference")]
    assert lines[0] == lines[1] == 20  # 16 steps and 4 validations
    assert not list((disk / "checkpoints").glob(".building*"))


def test_an_emergency_on_a_full_disk_is_an_error_and_older_ones_stay(disk: Path) -> None:
    class Preempted(TrainingCallback):
        def on_batch_end(self, trainer: Any, batch_idx: int, logs: dict[str, Any]) -> None:
            if trainer.state.epoch == 1:
                os.kill(os.getpid(), signal.SIGUSR1)

    trainer = trainer_for(disk, max_epochs=2)
    trainer.add_callback(FillsDisk(disk, at=1, until=None))
    trainer.add_callback(Preempted())
    with pytest.raises(CheckpointError, match="No space left on device; older checkpoints are unchanged"):
        fit(trainer)
    assert trainer_for(disk).load_checkpoint().global_step == 4


def test_a_read_only_folder_is_one_line(disk: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Locks(TrainingCallback):
        def on_epoch_start(self, trainer: Any, epoch: int) -> None:
            if epoch == 1:
                subprocess.run(["mount", "--bind", str(locked), str(locked)], check=True)
            if epoch in (1, 2):
                flags = "rw" if epoch == 2 else "ro"
                subprocess.run(["mount", "-o", f"remount,bind,{flags}", str(locked)], check=True)

    locked = disk / "checkpoints"
    trainer = trainer_for(disk, max_epochs=3)
    trainer.add_callback(Locks())
    try:
        fit(trainer)
    finally:
        subprocess.run(["umount", str(locked)], check=True)
    assert "Read-only file system" in next(r.message for r in caplog.records if r.levelno == logging.WARNING)
    assert trainer_for(disk).load_checkpoint().global_step == 12


def test_checksums_are_of_what_is_on_disk(tmp_path: Path) -> None:
    entry = write_part(tmp_path / "part", {"x": torch.arange(1000)})
    assert entry.size_bytes == (tmp_path / "part").stat().st_size
    assert torch.equal(read_part(tmp_path / "part")["x"], torch.arange(1000))
