"""A small training run with everything that could spoil an exact resume, and ways to kill it."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from model_training_framework.trainer import GenericTrainer, GenericTrainerConfig, TrainingCallback

PACKAGE = f"{os.sep}model_training_framework{os.sep}trainer{os.sep}"


@dataclass(frozen=True, slots=True)
class Scenario:
    """What a run does."""

    samples: int = 44
    batch_size: int = 4
    max_epochs: int = 2
    max_steps: int | None = None
    accumulation: int = 2
    workers: int = 0
    precision: str = "32-true"
    strategy: str = "auto"
    ranks: int = 1
    scheduler: str = "cosine"
    has_validation: bool = True
    validate_every_n_steps: int | None = 4
    save_every_n_steps: int | None = 3
    max_grad_norm: float | None = 1.0
    seed: int | None = 7
    late_s: float = 0.0  # how long rank 1 is late at a checkpoint; the others wait for 2 s


@dataclass(frozen=True, slots=True)
class Kill:
    """A signal that a rank sends to itself at its nth call or return within the trainer's code."""

    event: int
    signal: int
    rank: int = 0


class Augmented(Dataset):  # type: ignore[misc]
    """Samples with noise from Python's, NumPy's and torch's generators."""

    def __init__(self, samples: int) -> None:
        generator = torch.Generator().manual_seed(1)
        self.x = torch.randn(samples, 6, generator=generator)
        self.y = torch.randint(3, (samples,), generator=generator)

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        noise = random.gauss(0.0, 0.1) + float(np.random.normal()) * 0.1 + torch.randn(6) * 0.1
        return self.x[index] + noise, self.y[index]


class Net(nn.Module):  # type: ignore[misc]
    """Blocks with dropout and batch statistics."""

    def __init__(self, has_statistics: bool) -> None:
        super().__init__()
        norm = nn.BatchNorm1d(12) if has_statistics else nn.LayerNorm(12)
        self.inlet = nn.Linear(6, 12)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(12, 12), nn.ReLU(), nn.Dropout(0.2)) for _ in range(2))
        self.norm = norm
        self.outlet = nn.Linear(12, 3)

    def forward(self, x: Any) -> Any:
        x = self.norm(self.inlet(x))
        for block in self.blocks:
            x = x + block(x)
        return self.outlet(x)


class Counter(TrainingCallback):
    """Counts its calls and keeps the count in checkpoints."""

    def __init__(self, late_s: float = 0.0) -> None:
        self.batches = self.epochs = 0
        self.late_s = late_s

    def on_checkpoint(self, trainer: Any, global_step: int) -> None:
        if trainer.fabric.global_rank == 1:
            time.sleep(self.late_s)

    def on_batch_end(self, trainer: Any, batch_idx: int, logs: dict[str, Any]) -> None:
        assert isinstance(logs["loss"], float)
        self.batches += 1

    def on_epoch_end(self, trainer: Any, epoch: int, logs: dict[str, Any]) -> None:
        self.epochs += 1

    def state_dict(self) -> dict[str, Any]:
        return {"batches": self.batches, "epochs": self.epochs}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.batches, self.epochs = state["batches"], state["epochs"]


def scheduler_for(name: str, optimizer: Any) -> Any:
    if name == "cosine":
        return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
    if name == "plateau":
        return torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=10.0)
    return None


def count_events(kill: Kill | None, rank: int) -> dict[str, int]:
    """Count calls and returns within the trainer's code from now on, and kill at the chosen one."""
    seen = {"events": 0}
    mine = kill if kill is not None and kill.rank == rank else None

    def profile(frame: FrameType, event: str, _argument: object) -> None:
        if PACKAGE in frame.f_code.co_filename:
            seen["events"] += 1
            if mine is not None and seen["events"] == mine.event:
                os.kill(os.getpid(), mine.signal)

    sys.setprofile(profile)
    return seen


def loaders(scenario: Scenario) -> tuple[Any, Any]:
    common: dict[str, Any] = {"num_workers": scenario.workers}
    train = DataLoader(Augmented(scenario.samples), scenario.batch_size, shuffle=True, **common)
    val = DataLoader(Augmented(10), 4, **common) if scenario.has_validation else None
    return train, val


def config_for(scenario: Scenario, folder: Path, **changes: Any) -> GenericTrainerConfig:
    settings: dict[str, Any] = {
        "max_epochs": scenario.max_epochs,
        "max_steps": scenario.max_steps,
        "gradient_accumulation_steps": scenario.accumulation,
        "max_grad_norm": scenario.max_grad_norm,
        "accelerator": "cpu",
        "devices": scenario.ranks,
        "precision": scenario.precision,
        "strategy": scenario.strategy,
        "seed": scenario.seed,
        "experiment_dir": folder,
        "save_every_n_steps": scenario.save_every_n_steps,
        "validate_every_n_steps": scenario.validate_every_n_steps,
        "log_every_n_steps": 3,
        "checkpoint_timeout_seconds": 2.0 if scenario.late_s else 60.0,
        "progress_bar": False,
    }
    return GenericTrainerConfig(**{**settings, **changes})


def train(scenario: Scenario, folder: Path, kill: Kill | None = None, rank: int = 0) -> dict[str, Any]:
    """Run, and return what two runs are compared by."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    trainer = GenericTrainer(config_for(scenario, folder))
    counter = Counter(scenario.late_s)
    trainer.add_callback(counter)
    model = Net(has_statistics=scenario.strategy != "fsdp")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = scheduler_for(scenario.scheduler, optimizer)
    train_loader, val_loader = loaders(scenario)
    seen = count_events(kill, rank)
    try:
        trainer.fit(model, optimizer, train_loader, val_loader, scheduler)
    finally:
        sys.setprofile(None)
    weights = {
        name: (value.full_tensor() if hasattr(value, "full_tensor") else value).clone()
        for name, value in model.state_dict().items()
    }
    return {
        "weights": weights,
        "batches": counter.batches,
        "epochs": counter.epochs,
        "step": trainer.state.global_step,
        "events": seen["events"],
        "metrics": trainer.metrics,
    }


def main_of_rank(scenario: Scenario, folder: str, kill: Kill | None, rank: int, port: int) -> None:
    """Run one rank in this process, and leave the result in a file."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    multiprocessing.set_start_method("fork", force=True)  # as in a script: workers end with the process they belong to
    log = os.open(Path(folder) / f"rank-{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    if scenario.ranks > 1:
        os.environ |= {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "LOCAL_RANK": str(rank),
            "NODE_RANK": "0",
            "WORLD_SIZE": str(scenario.ranks),
            "GLOO_SOCKET_IFNAME": "lo",
        }
    result = train(scenario, Path(folder), kill, rank)
    torch.save(result, Path(folder) / f"result-{rank}")
