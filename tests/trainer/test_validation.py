"""Validations: a mean that is no number is recorded and never the best, and every sample counts once."""

from __future__ import annotations

import json
import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

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
