"""A rank that hangs is named with its line, and all ranks end with 75; SIGTERM ends a rank that waits for another."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from model_training_framework.trainer import GenericTrainer, GenericTrainerConfig, TrainerError, TrainingCallback
from tests.ranks import free_port
from tests.trainer.two_ranks import DEADLINE_S

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.trainer.job", "torch.utils.data"])
AFTER = 6  # samples of a rank, of one batch each


class Samples(Dataset):  # type: ignore[misc]
    """Samples, of which one holds up rank 1."""

    def __init__(self, folder: Path, rank: int, how: str) -> None:
        self.folder, self.rank, self.how, self.taken = folder, rank, how, 0

    def __len__(self) -> int:
        return 200

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        self.taken += 1
        if self.rank == 1 and self.taken == AFTER:
            (self.folder / "hangs").touch()
            if self.how == "stopped":
                os.kill(os.getpid(), signal.SIGSTOP)
            while self.how == "late":
                time.sleep(0.05)
        return torch.ones(4), torch.tensor(index % 2)


class Busy(TrainingCallback):
    """A callback that takes longer than the ranks' timeout, on one rank."""

    def on_batch_end(self, trainer: Any, batch_idx: int, logs: dict[str, Any]) -> None:
        if batch_idx == 2 and trainer.fabric.global_rank == 0:
            time.sleep(4.0)


def _main(folder: Path, rank: int, port: int, how: str, settings: dict[str, Any]) -> None:
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "LOCAL_RANK": str(rank), "NODE_RANK": "0",
        "WORLD_SIZE": "2", "GLOO_SOCKET_IFNAME": "lo",
    }  # fmt: skip
    log = os.open(folder / f"rank-{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    torch.set_num_threads(1)
    steps = 10 if how == "busy" else 100
    config = GenericTrainerConfig(
        max_steps=steps, accelerator="cpu", devices=2, experiment_dir=folder, progress_bar=False, **settings
    )
    trainer = GenericTrainer(config)
    if how == "busy":
        trainer.add_callback(Busy())
    model = torch.nn.Linear(4, 2)
    trainer.fit(model, torch.optim.SGD(model.parameters(), lr=0.1), DataLoader(Samples(folder, rank, how), 1))


def run(folder: Path, how: str, told: bool = False, **settings: float) -> tuple[list[int | None], str]:
    """Run two ranks; return their exit codes (None: still there, then killed) and their logs."""
    port = free_port()
    ranks = [_CONTEXT.Process(target=_main, args=(folder, rank, port, how, settings)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    try:
        if told:
            end = time.monotonic() + DEADLINE_S
            while not (folder / "hangs").exists():
                assert time.monotonic() < end
                time.sleep(0.05)
            ranks[0].terminate()
        ranks[0].join(DEADLINE_S)
        ranks[1].join(0.0 if how == "stopped" else 20.0)
        codes = [rank.exitcode for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.join()
    return codes, "\n".join(path.read_text() for path in sorted(folder.glob("rank-*.log")))


def test_a_rank_that_is_late_for_ever_is_named_with_its_line(tmp_path: Path) -> None:
    codes, logs = run(tmp_path, "late", rank_timeout_seconds=3.0)
    assert codes == [75, 75], logs
    assert (
        "no rank went on for 3 s (rank_timeout_seconds): rank 1 is in TRAIN_BATCH_FORWARD at test_hang_guard.py:"
        in logs
    )
    assert "__getitem__); the others wait" in logs
    assert "__getitem__" in (tmp_path / "hang" / "rank-00001.txt").read_text()
    assert (tmp_path / "hang" / "rank-00000.txt").exists()


def test_a_rank_that_was_stopped_is_named(tmp_path: Path) -> None:
    codes, logs = run(tmp_path, "stopped", rank_timeout_seconds=3.0)
    assert codes == [75, None], logs
    assert "rank 1 no longer runs, last in " in logs


def test_sigterm_ends_a_rank_that_waits_for_a_lost_one(tmp_path: Path) -> None:
    codes, logs = run(tmp_path, "late", told=True, grace_period_seconds=4.0)
    assert codes[0] == 75, logs
    assert "SIGTERM came" in logs


def test_a_long_callback_is_no_hang(tmp_path: Path) -> None:
    codes, logs = run(tmp_path, "busy", rank_timeout_seconds=1.0)
    assert codes == [0, 0], logs
    assert not (tmp_path / "hang").exists()


def test_a_timeout_is_above_zero() -> None:
    with pytest.raises(TrainerError, match=r"rank_timeout_seconds is 0.0; it must be greater than 0"):
        GenericTrainerConfig(max_steps=1, rank_timeout_seconds=0.0)
