"""Validations: a mean that is no number is recorded and never the best, and every sample counts once."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
)

from model_training_framework.trainer import GenericTrainer
from model_training_framework.trainer.checkpoint_store import CheckpointStore, read_manifest
from tests.trainer.job import Scenario, config_for
from tests.trainer.two_ranks import on_ranks

SCRIPTED = Scenario(max_epochs=4, accumulation=1, save_every_n_steps=None, validate_every_n_steps=None)
LOSSES = [3.0, math.nan, 2.0, math.inf]  # of the epochs


class Scripted(GenericTrainer):
    """Validations whose losses are known."""

    def training_step(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        return {"loss": self.model(batch[0]).sum()}

    def validation_step(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        return {"loss": LOSSES[self.state.epoch]}


def train_scripted(folder: Path, **changes: Any) -> dict[str, float]:
    trainer = Scripted(config_for(SCRIPTED, folder, **changes))
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1)
    data = DataLoader(TensorDataset(torch.ones(8, 2)), 2)
    trainer.fit(model, optimizer, data, data, plateau)
    return trainer.metrics | {"lr": optimizer.param_groups[0]["lr"]}


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_metric_that_is_no_number_is_recorded_and_never_the_best(tmp_path: Path, ranks: int) -> None:
    results = on_ranks(partial(train_scripted, save_top_k=-1, devices=ranks), tmp_path, ranks)
    assert [result["val_loss"] for result in results] == [math.inf] * ranks
    lines = [json.loads(line) for line in (tmp_path / "steps.jsonl").read_text().splitlines()]
    assert [line["val_loss"] for line in lines if line["phase"] == "validation"] == [3.0, None, 2.0, None]
    checkpoints = tmp_path / "checkpoints"
    kept = [read_manifest(path).metrics["val_loss"] for path in sorted(checkpoints.glob("step-*"))]
    assert kept == [3.0, None, 2.0, None]
    assert "NaN" not in "".join(path.read_text() for path in checkpoints.glob("*/manifest.json"))
    assert not list(checkpoints.glob(".building*"))
    for mode, best in (("min", 2.0), ("max", 3.0)):
        stored = CheckpointStore(checkpoints, 1, "val_loss", mode).best()
        assert stored is not None
        assert stored.manifest.metrics["val_loss"] == best


def test_a_metric_that_is_no_number_is_no_improvement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.LOSSES", [3.0, math.nan, math.nan, math.nan])
    assert train_scripted(tmp_path)["lr"] == pytest.approx(0.01)  # patience of one epoch is over at the second


class OwnBatches(BatchSampler):  # type: ignore[misc]
    """A batch sampler of a class of its own."""


class OwnLoader(DataLoader):  # type: ignore[misc]
    """A loader of a class of its own."""


class Once(GenericTrainer):
    """Validations that give back the mean of their values, after a forward pass that all ranks join."""

    def training_step(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        return {"loss": self.model(batch[0]).mean()}

    def validation_step(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        self.model(batch[0].expand(-1, 2))
        return {"value": batch[0].mean()}


def batches_of(values: Any, kind: str, size: int) -> Any:
    """Return a loader of values; sharing them out is its own or the trainer's work."""
    rank = int(os.environ["LOCAL_RANK"])
    data = TensorDataset(values)
    if kind == "list":  # ranks with batches of their own, not equally many
        return [(part,) for part in (values[1:].split(size) if rank else values[:1].split(size))]
    if kind == "stream":
        return OwnStream(values[1:] if rank else values[:1], size)
    if kind == "given":
        return DataLoader(data, size, sampler=DistributedSampler(data, 2, rank, shuffle=False))
    if kind == "batch sampler":
        return DataLoader(data, batch_sampler=OwnBatches(SequentialSampler(data), size, drop_last=False))
    if kind == "own class":
        return OwnLoader(data, size)
    if kind == "sampler":
        return DataLoader(data, size, sampler=SubsetRandomSampler(range(len(data))))
    return DataLoader(data, size, shuffle=kind == "shuffled", num_workers=int(kind == "workers"))


class OwnStream:
    """Batches whose number is not known before the end."""

    def __init__(self, values: Any, size: int) -> None:
        self.values, self.size = values, size

    def __iter__(self) -> Iterator[Any]:
        return iter([(part,) for part in self.values.split(self.size)])


CASES = [
    (kind, 13, size) for size in (1, 2, 4)
    for kind in ("plain", "shuffled", "given", "own class", "sampler", "batch sampler", "list", "stream")
] + [("plain", 1, 4), ("plain", 2, 1), ("plain", 12, 3), ("workers", 13, 2), ("given", 1, 4)]  # fmt: skip


def validate(folder: Path, strategy: str) -> list[float]:
    means = []
    for number, (kind, count, size) in enumerate(CASES):
        config = config_for(Scenario(ranks=2, strategy=strategy, max_epochs=1), folder / str(number))
        trainer = Once(config)
        values = torch.linspace(0.0, 100.0, count)[:, None] if count > 1 else torch.tensor([[50.0]])
        model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2) if strategy == "ddp" else nn.Identity())
        train = DataLoader(TensorDataset(torch.randn(8, 2)), 4)
        trainer.fit(model, torch.optim.SGD(model.parameters(), lr=0.1), train, batches_of(values, kind, size))
        means.append(trainer.metrics["val_value"])
    return means


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_every_sample_counts_once_however_ranks_share_them(tmp_path: Path, strategy: str) -> None:
    for means in on_ranks(partial(validate, strategy=strategy), tmp_path):
        wrong = {case: mean for case, mean in zip(CASES, means, strict=True) if mean != pytest.approx(50.0, abs=1e-4)}
        assert wrong == {}


def test_batches_of_no_weight_leave_no_trace(tmp_path: Path) -> None:
    class Targets(Scripted):
        def validation_step(self, batch: Any, batch_idx: int) -> dict[str, Any]:
            return {"loss": batch.mean()}

        def validation_weight(self, batch: Any) -> int:
            return len(batch)

    for name, batches in {"some": [torch.tensor([2.0]), torch.tensor([])], "none": [torch.tensor([])]}.items():
        trainer = Targets(config_for(SCRIPTED, tmp_path / name, max_epochs=1))
        model = nn.Linear(2, 1)
        trainer.fit(model, torch.optim.SGD(model.parameters(), lr=0.1), [(torch.ones(1, 2),)], batches)
        assert trainer.metrics == {"val_loss": pytest.approx(2.0 if name == "some" else math.nan, nan_ok=True)}
