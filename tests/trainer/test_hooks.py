"""What a derived trainer may say: how much a batch counts in a validation, where numbers go, when not to validate."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from model_training_framework.trainer import GenericTrainer, TrainingCallback
from tests.trainer.job import Scenario, config_for


class Weighted(GenericTrainer):
    """The loss of a validation batch is its first number, and counts as often as its second says."""

    def training_step(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        return {"loss": self.module(batch).sum()}

    def validation_step(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        return {"loss": batch[0]}

    def validation_weight(self, batch: Any) -> int:
        return int(batch[1])


class Kept:
    """A logger that keeps what it is told."""

    def __init__(self) -> None:
        self.values: list[tuple[int, dict[str, float]]] = []
        self.is_closed = False

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.values.append((step, dict(values)))

    def close(self) -> None:
        self.is_closed = True


def run(trainer: GenericTrainer, batches: list[Any]) -> None:
    model = torch.nn.Linear(2, 1)
    trainer.fit(model, torch.optim.SGD(model.parameters(), lr=0.01), [torch.ones(2)] * 3, batches)


def test_a_validation_weighs_batches_as_the_trainer_says(tmp_path: Path) -> None:
    trainer = Weighted(config_for(Scenario(max_epochs=1, accumulation=1), tmp_path))
    run(trainer, [torch.tensor([5.0, 1.0]), torch.tensor([1.0, 3.0])])
    assert trainer.metrics["val_loss"] == pytest.approx((5.0 * 1 + 1.0 * 3) / 4)


def test_a_logger_is_told_what_steps_jsonl_has(tmp_path: Path) -> None:
    trainer, kept = Weighted(config_for(Scenario(max_epochs=1, accumulation=1), tmp_path)), Kept()
    trainer.add_logger(kept)
    run(trainer, [torch.tensor([5.0, 1.0])])
    lines = [json.loads(line) for line in (tmp_path / "steps.jsonl").read_text().splitlines()]
    assert [values["train/loss"] for _, values in kept.values[:3]] == [line["loss"] for line in lines[:3]]
    assert kept.values[3] == (3, {"val_loss": 5.0})
    assert kept.is_closed


def test_without_epochs_between_validations_only_the_end_of_training_has_one(tmp_path: Path) -> None:
    config = config_for(
        Scenario(max_epochs=3, accumulation=1, validate_every_n_steps=None), tmp_path, validate_every_n_epochs=None
    )
    run(Weighted(config), [torch.tensor([5.0, 1.0])])
    lines = [json.loads(line) for line in (tmp_path / "steps.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if line["phase"] == "validation"] == [9]


def test_workers_that_a_loader_keeps_end_with_the_training(tmp_path: Path) -> None:
    """At exit Python waits for every child, and these outlive SIGTERM for the whole grace period."""
    loader = DataLoader(TensorDataset(torch.ones(4, 2)), batch_size=None, num_workers=1, persistent_workers=True)
    trainer = Weighted(config_for(Scenario(max_epochs=2, accumulation=1, has_validation=False), tmp_path))
    model = torch.nn.Linear(2, 1)
    seen: list[int] = []

    class Count(TrainingCallback):
        def on_epoch_end(self, trainer: Any, epoch: int, logs: dict[str, Any]) -> None:
            seen.append(len(multiprocessing.active_children()))

    trainer.add_callback(Count())
    trainer.training_step = lambda batch, batch_idx: {"loss": model(batch[0]).sum()}  # type: ignore[method-assign]
    trainer.fit(model, torch.optim.SGD(model.parameters(), lr=0.01), loader)
    assert seen == [1, 1], "the worker is kept from epoch to epoch"
    assert multiprocessing.active_children() == []
