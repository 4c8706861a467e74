"""Measure what the trainer costs: ``python -m tests.bench_trainer``. Prints; timing decides no test.

A step beside a bare PyTorch loop that does the same work on the same data (goal: at most 3 % more at 5 ms), and
a checkpoint beside ``torch.save`` of the same state (goal: at most 1.3 times). Both sides alternate in
one process, so that what else the machine does touches both; medians and interquartile ranges are printed. Before a
side writes, everything written earlier is on the disk. Neither side waits for the disk: a checkpoint gets there in a
thread, while the one before is kept.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from model_training_framework.trainer import GenericTrainer, GenericTrainerConfig, TrainingCallback

STEP_MS = 5.0
STEPS = 5  # of one side before the other has its turn
ROUNDS = 200
WIDTH = 512
BATCH = 64
SAMPLES = 100 * BATCH
PARAMETERS = 32  # matrices of 4 MiB, for the checkpoint; AdamW keeps two more of each
SAVES = 15
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h of glibc


@dataclass(frozen=True, slots=True)
class Compared:
    """Two sides of a measurement, in milliseconds."""

    name: str
    ours: list[float]
    bare: list[float]
    goal: str

    def __str__(self) -> str:
        """Return a line of the table."""
        ratio = statistics.median(self.ours) / statistics.median(self.bare)
        by_round = statistics.median(a / b for a, b in zip(self.ours, self.bare, strict=True))
        return f"{self.name:34}{_told(self.ours):>22}{_told(self.bare):>22}{ratio:>8.3f}{by_round:>10.3f}  {self.goal}"


def _told(times_ms: list[float]) -> str:
    low, middle, high = statistics.quantiles(times_ms, n=4)
    return f"{middle:.3f} ± {high - low:.3f}"


class Deep(nn.Module):  # type: ignore[misc]
    """As many layers as take a step of the wanted length."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(layers)), nn.Linear(WIDTH, 8))

    def forward(self, x: Any) -> Any:
        return self.layers(x)


def made(layers: int) -> tuple[Any, Any]:
    torch.manual_seed(0)
    model = Deep(layers)
    return model, torch.optim.SGD(model.parameters(), lr=1e-3)


def loader() -> Any:
    """Return batches as a DataLoader makes them, for both sides."""
    data = TensorDataset(torch.randn(SAMPLES, WIDTH), torch.randint(8, (SAMPLES,)))
    return DataLoader(data, BATCH, shuffle=True)


def bare_steps(layers: int, data: Any) -> Iterator[float]:
    """Yield a bare loop's milliseconds per step, over STEPS steps each."""
    model, optimizer = made(layers)
    source = itertools.chain.from_iterable(itertools.repeat(data))
    while True:
        started = time.perf_counter()
        for _ in range(STEPS):
            x, y = next(source)
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        yield 1e3 * (time.perf_counter() - started) / STEPS


class Alternating(TrainingCallback):
    """Times STEPS of the trainer's steps, then lets the bare loop have its turn, and so on."""

    def __init__(self, bare: Iterator[float]) -> None:
        self.bare = bare
        self.times: tuple[list[float], list[float]] = ([], [])
        self.started = time.perf_counter()

    def on_step_end(self, trainer: Any, global_step: int) -> None:
        if global_step % STEPS:
            return
        self.times[0].append(1e3 * (time.perf_counter() - self.started) / STEPS)
        self.times[1].append(next(self.bare))
        self.started = time.perf_counter()


def layers_for(step_ms: float) -> int:
    """Return how many layers make a bare step about so long."""
    few, many = (statistics.median(itertools.islice(bare_steps(layers, loader()), 20)) for layers in (2, 6))
    return max(1, round(2 + 4 * (step_ms - few) / max(1e-3, many - few)))


def step_overhead() -> Compared:
    """Compare a trainer's step, steps.jsonl and safe points included, with a bare one."""
    layers = layers_for(STEP_MS)
    with tempfile.TemporaryDirectory() as folder:
        config = GenericTrainerConfig(
            max_steps=STEPS * (ROUNDS + 1),
            accelerator="cpu",
            devices=1,
            experiment_dir=Path(folder),
            progress_bar=False,
        )
        trainer, alternating = GenericTrainer(config), Alternating(bare_steps(layers, loader()))
        trainer.add_callback(alternating)
        trainer.fit(*made(layers), loader())
    ours, bare = (times[10:] for times in alternating.times)  # the first ones warm up
    return Compared(f"step, {layers} layers, ms", ours, bare, "≤ 1.03")


class Saving(TrainingCallback):
    """Saves checkpoints in turn with ``torch.save`` of the same state, once there is a state to save."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.times: tuple[list[float], list[float]] = ([], [])

    def on_batch_end(self, trainer: Any, batch_idx: int, logs: dict[str, Any]) -> None:
        if logs["global_step"] != 2:
            return
        content = {"model": trainer.module.state_dict(), "optimizer": trainer.optimizer.state_dict()}
        bare: Callable[[], object] = lambda: torch.save(content, self.folder / "bare")  # noqa: E731
        for _ in range(SAVES + 2):
            for times, save in zip(self.times, (trainer.save_checkpoint, bare), strict=True):
                (self.folder / "bare").unlink(missing_ok=True)
                os.sync()  # what the other side left to be written is not this side's
                started = time.perf_counter()
                save()
                times.append(1e3 * (time.perf_counter() - started))


def checkpoint_cost() -> Compared:
    """Compare a checkpoint, on disk and with checksums, with ``torch.save`` of model and optimizer."""
    folder = Path(tempfile.mkdtemp())
    config = GenericTrainerConfig(
        max_steps=2, accelerator="cpu", devices=1, experiment_dir=folder, progress_bar=False, save_top_k=0
    )
    model = nn.ModuleList([nn.Linear(1024, 1024, bias=False) for _ in range(PARAMETERS)])

    class Sum(GenericTrainer):
        def training_step(self, batch: Any, batch_idx: int) -> dict[str, Any]:
            return {"loss": torch.stack([weight.square().mean() for weight in self.module.parameters()]).sum()}

    trainer, saving = Sum(config), Saving(folder)
    trainer.add_callback(saving)
    trainer.fit(model, torch.optim.AdamW(model.parameters()), [0, 0])
    size = (folder / "bare").stat().st_size / 2**20
    shutil.rmtree(folder)
    ours, bare = (times[2:] for times in saving.times)
    return Compared(f"checkpoint, {size:.0f} MiB, ms", ours, bare, "≤ 1.3")


def keep_freed_memory() -> None:
    """Keep glibc from giving memory back between steps, which it does on one side or the other as chance has it."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
        mallopt(M_MMAP_THRESHOLD, 2**25)


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    keep_freed_memory()
    print(f"{'median ± interquartile range':34}{'trainer':>22}{'bare PyTorch':>22}{'ratio':>8}{'by round':>10}  goal")
    for measure in (step_overhead, checkpoint_cost):
        print(measure(), flush=True)


if __name__ == "__main__":
    main()
