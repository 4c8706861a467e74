"""A folder has one run at a time, and none keeps it beyond its death."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from model_training_framework.trainer import CheckpointError, GenericTrainer, RunRefusedError, TrainerError
from model_training_framework.trainer.folder_lock import FILE, held
from model_training_framework.trainer.ranks import Ranks
from tests.trainer.job import Scenario, config_for
from tests.trainer.two_ranks import on_ranks

ALONE = Ranks(0, 1, 5.0)
LONGEST_S = 600.0  # ends what hangs, on a machine however slow
SCRIPT = """
import multiprocessing, os, sys, torch
from torch import nn
from model_training_framework.trainer import GenericTrainer, GenericTrainerConfig, TrainingCallback

class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        if index == 3 and os.path.exists(sys.argv[1] + "/hang"):
            multiprocessing.Event().wait()
        return torch.ones(2)

class Waits(TrainingCallback):
    def on_batch_start(self, trainer, batch_idx):
        if batch_idx == 1:
            workers = [child.pid for child in multiprocessing.active_children()]
            print(os.getpid(), *workers, flush=True)
            sys.stdin.readline()

class Sums(GenericTrainer):
    def training_step(self, batch, batch_idx):
        return {"loss": self.model(batch).sum()}

model = nn.Linear(2, 1)
trainer = Sums(GenericTrainerConfig(
    max_epochs=1, accelerator="cpu", devices=1, experiment_dir=sys.argv[1], save_every_n_steps=1
))
trainer.add_callback(Waits())
data = torch.utils.data.DataLoader(Samples(), 1, num_workers=1)
trainer.fit(model, torch.optim.SGD(model.parameters(), 0.01), data)
"""


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    (tmp_path / "train.py").write_text(SCRIPT)
    return [sys.executable, str(tmp_path / "train.py"), str(tmp_path)]


def begin(command: list[str]) -> tuple[subprocess.Popen[str], list[int]]:
    """Start a run that waits within its second step; return it, and the processes of it: trainer and data worker."""
    run = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert run.stdout
    line = run.stdout.readline()
    assert line, run.communicate()[1]
    return run, [int(word) for word in line.split()]


def again(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, input="\n", capture_output=True, text=True, timeout=LONGEST_S, check=False)


def check_refused(second: subprocess.CompletedProcess[str], folder: Path, pid: int) -> None:
    assert second.returncode == 1
    assert "Traceback" not in second.stderr
    (line,) = [line for line in second.stderr.splitlines() if "in use" in line]
    assert line.startswith(f"{folder} is in use by another run ({socket.gethostname()}, process {pid}, ")
    assert line.endswith("end it or wait for its end, or choose another folder")


def steps(folder: Path) -> list[int]:
    return [json.loads(line)["step"] for line in (folder / "steps.jsonl").read_text().splitlines()]


def test_a_second_trainer_is_refused_in_a_line_and_the_first_goes_on(tmp_path: Path, command: list[str]) -> None:
    first, (pid, _) = begin(command)
    with first:
        before = sorted((tmp_path / "checkpoints").iterdir())
        check_refused(again(command), tmp_path, pid)
        assert sorted((tmp_path / "checkpoints").iterdir()) == before
        _, errors = first.communicate("\n", timeout=LONGEST_S)
    assert first.returncode == 0, errors
    assert steps(tmp_path) == [1, 2, 3, 4]


def test_a_killed_trainer_leaves_the_folder_while_its_data_worker_lives(tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "hang").touch()
    first, (pid, worker) = begin(command)
    with first:
        os.kill(pid, signal.SIGKILL)
        first.wait()
        (tmp_path / "hang").unlink()
        second = again(command)
        os.kill(worker, signal.SIGKILL)  # it was alive all the while
    assert second.returncode == 0, second.stderr
    assert steps(tmp_path) == [1, 2, 3, 4]


def test_a_killed_launcher_does_not_give_the_folder_away(tmp_path: Path, command: list[str]) -> None:
    launcher = [sys.executable, "-c", "import subprocess, sys; subprocess.run(sys.argv[1:])"]
    first, (pid, _) = begin([*launcher, *command])
    with first:
        first.kill()
        first.wait()
        check_refused(again(command), tmp_path, pid)
        assert first.stdin
        assert first.stderr
        first.stdin.close()
        first.stderr.read()  # to the trainer's end
    assert steps(tmp_path) == [1, 2, 3, 4]


def refused(folder: Path) -> str:
    config = config_for(Scenario(ranks=2, max_epochs=1), folder)
    model = nn.Linear(2, 1)
    data = DataLoader(TensorDataset(torch.ones(4, 2)), 2)
    try:
        GenericTrainer(config).fit(model, torch.optim.SGD(model.parameters(), lr=0.1), data)
    except TrainerError as error:
        return f"{type(error).__name__} {error}"
    return ""


def test_every_rank_is_refused_alike(tmp_path: Path) -> None:
    with held([tmp_path], ALONE):
        first, second = on_ranks(refused, tmp_path)
    assert first == second
    assert first.startswith(f"RunRefusedError {tmp_path} is in use by another run (")


def test_runs_of_different_folders_do_not_share_checkpoints(tmp_path: Path) -> None:
    one, other = [tmp_path / "one", tmp_path / "shared"], [tmp_path / "other", tmp_path / "shared"]
    with (
        held(one, ALONE),
        pytest.raises(RunRefusedError, match=r"/shared is in use"),
        held(other, ALONE),
    ):
        pass
    with held(other, ALONE), held([tmp_path / "one"], ALONE):
        pass


def test_a_finished_trainer_saves_in_no_other_runs_folder(tmp_path: Path) -> None:
    class Sums(GenericTrainer):
        def training_step(self, batch: Any, batch_idx: int) -> dict[str, Any]:
            return {"loss": self.model(batch[0]).sum()}

    trainer = Sums(config_for(Scenario(max_epochs=1), tmp_path))
    model = nn.Linear(2, 1)
    trainer.fit(model, torch.optim.SGD(model.parameters(), lr=0.1), DataLoader(TensorDataset(torch.ones(4, 2)), 2))
    trainer.save_checkpoint()
    with held([tmp_path], ALONE), pytest.raises(RunRefusedError, match="in use"):
        trainer.save_checkpoint()


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Hold a folder as Slurm's job 7 on another host did."""
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    with monkeypatch.context() as there:
        there.setattr(socket, "gethostname", lambda: "node1")
        with held([tmp_path], ALONE):
            there.undo()
            yield


@pytest.mark.usefixtures("elsewhere")
def test_a_holder_on_another_host_is_named_with_its_job_and_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(RunRefusedError) as caught, held([tmp_path], ALONE):
        pass
    assert "(node1, process " in str(caught.value)
    assert ", Slurm job 7, since " in str(caught.value)
    assert str(caught.value).endswith(f"; if node1 is gone for good, delete {tmp_path / FILE}")


def test_a_requeued_job_waits_for_the_lock_of_its_start_on_a_dead_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    before = held([tmp_path], ALONE)
    before.__enter__()

    def lease_ends(seconds: float) -> None:
        assert before.__exit__(None, None, None) is False

    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    monkeypatch.setattr(time, "sleep", lease_ends)
    with held([tmp_path], ALONE):
        assert [record.levelno for record in caplog.records] == [logging.WARNING]
        assert "waiting up to 120 s for this job's earlier start on" in caplog.text


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(CheckpointError, match=r"file/in cannot be made or written: Not a directory"),
        held([tmp_path / "file" / "in"], ALONE),
    ):
        pass
