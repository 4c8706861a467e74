"""A run goes on from its own checkpoints: what differs is refused by name, or taken over where that is asked for."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, TensorDataset

from model_training_framework.config import ExperimentConfig
from model_training_framework.trainer import GenericTrainer, GenericTrainerConfig, RunRefusedError, TrainerError
from model_training_framework.trainer.checkpoint_files import entry_of, read_part, write_part
from model_training_framework.trainer.checkpoint_store import read_manifest
from model_training_framework.trainer.data_mark import data_mark
from tests.trainer.job import Scenario, config_for
from tests.trainer.two_ranks import on_ranks


class Squares(GenericTrainer):
    def training_step(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        return {"loss": self.model(batch[0]).square().mean()}


def values(seed: int = 0, count: int = 16) -> TensorDataset:
    return TensorDataset(torch.randn(count, 2, generator=torch.Generator().manual_seed(seed)))


def fit(folder: Path, max_epochs: int = 2, **changes: Any) -> Any:
    """Train and return the optimizer; ``changes`` are of the run or of its configuration."""
    data = changes.pop("data", None) or values()
    size, shuffle = changes.pop("batch_size", 4), changes.pop("shuffle", True)
    options = {"lr": 0.1, "momentum": 0.5} | changes.pop("options", {})
    kind = changes.pop("optimizer", torch.optim.SGD)
    schedule: Callable[[Any], Any] = changes.pop("schedule", lambda optimizer: None)
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    optimizer = kind(model.parameters(), **options)
    scenario = Scenario(max_epochs=max_epochs, accumulation=1, max_grad_norm=None, ranks=changes.pop("ranks", 1))
    trainer = Squares(config_for(scenario, folder, **changes))
    trainer.fit(model, optimizer, DataLoader(data, size, shuffle=shuffle), None, schedule(optimizer))
    return optimizer


def cosine(steps: int) -> Callable[[Any], Any]:
    return lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, steps)


def joined(steps: int) -> Callable[[Any], Any]:
    def make(optimizer: Any) -> Any:
        parts = [lr_scheduler.LinearLR(optimizer, 0.5, total_iters=3), lr_scheduler.CosineAnnealingLR(optimizer, steps)]
        return lr_scheduler.SequentialLR(optimizer, parts, [3])

    return make


CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "batch_size": ({"batch_size": 8}, "batch_size: checkpoint 4, now 8"),
    "learning_rate": ({"options": {"lr": 0.3}}, "learning_rate: checkpoint 0.1, now 0.3"),
    "momentum": ({"options": {"momentum": 0.9}}, "momentum: checkpoint 0.5, now 0.9"),
    "seed": ({"seed": 8}, "seed: checkpoint 7, now 8"),
    "precision": ({"precision": "bf16-mixed"}, "precision: checkpoint 32-true, now bf16-mixed"),
    "gradient_accumulation_steps": (
        {"gradient_accumulation_steps": 2},
        "gradient_accumulation_steps: checkpoint 1, now 2",
    ),
    "max_grad_norm": ({"max_grad_norm": 1.0}, "max_grad_norm: checkpoint None, now 1.0"),
    "data": ({"data": values(1)}, "data: checkpoint TensorDataset of 16, CRC-32 "),
    "sampler": ({"shuffle": False}, "sampler: checkpoint RandomSampler, now SequentialSampler"),
    "scheduler.T_max": ({"schedule": cosine(30)}, "scheduler.T_max: checkpoint 20, now 30"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_differs_is_refused_by_name_or_taken(tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture) -> None:
    changes, said = CHANGES[name]
    fit(tmp_path, 1, schedule=cosine(20))
    lines = (tmp_path / "steps.jsonl").read_text()
    with pytest.raises(RunRefusedError) as caught:
        fit(tmp_path, **{"schedule": cosine(20)} | changes)
    text = str(caught.value)
    assert f"is of another run: {said}" in text
    assert text.endswith(f"Set it back, name what may change in resume_changes ({name}), or begin in another folder")
    assert "\n" not in text
    assert (tmp_path / "steps.jsonl").read_text() == lines
    caplog.clear()
    fit(tmp_path, **{"schedule": cosine(20)} | changes, resume_changes=(name, "nothing"))
    assert [record.message for record in caplog.records if f"going on with {said}" in record.message]
    caplog.clear()
    fit(tmp_path, 3, **{"schedule": cosine(20)} | changes)  # the new value is the run's own from then on
    assert not [record for record in caplog.records if record.levelno == logging.WARNING]


def test_all_that_differs_is_in_one_line(tmp_path: Path) -> None:
    fit(tmp_path, 1)
    with pytest.raises(
        RunRefusedError, match=r"batch_size: checkpoint 4, now 2; .*learning_rate: checkpoint 0\.1, now"
    ):
        fit(tmp_path, batch_size=2, options={"lr": 0.2}, resume_changes=["momentum"])


def test_an_optimizer_of_another_kind_is_never_taken(tmp_path: Path) -> None:
    fit(tmp_path, 1)
    with pytest.raises(RunRefusedError, match=r"optimizer: checkpoint SGD, now RMSprop. Set it back, or begin in an"):
        fit(tmp_path, optimizer=torch.optim.RMSprop, resume_changes=("optimizer",))


def rates(folder: Path) -> list[float]:
    return [json.loads(line)["lr"] for line in (folder / "steps.jsonl").read_text().splitlines()]


def test_a_taken_learning_rate_is_applied_at_its_place_in_the_schedule(tmp_path: Path) -> None:
    for name, schedule in (("cosine", cosine(20)), ("joined", joined(20)), ("none", lambda optimizer: None)):
        fit(tmp_path / name, 1, schedule=schedule)
        fit(tmp_path / name, schedule=schedule, options={"lr": 0.3}, resume_changes=("learning_rate",))
        fit(tmp_path / f"{name} whole", schedule=schedule, options={"lr": 0.3})
        assert rates(tmp_path / name)[4:] == pytest.approx(rates(tmp_path / f"{name} whole")[4:])
        assert rates(tmp_path / name)[0] != rates(tmp_path / f"{name} whole")[0]


def test_a_taken_schedule_is_applied(tmp_path: Path) -> None:
    fit(tmp_path, 1, schedule=joined(20))
    with pytest.raises(RunRefusedError, match=r"scheduler\.1\.T_max: checkpoint 20, now 5\."):
        fit(tmp_path, schedule=joined(5))
    fit(tmp_path, schedule=joined(5), resume_changes=("scheduler.1.T_max",))
    fit(tmp_path / "whole", schedule=joined(5))
    assert rates(tmp_path)[-1] < 0.06  # 20 steps would have it near 0.1
    assert rates(tmp_path / "whole")[-1] < 0.06


def test_what_does_not_decide_the_steps_may_change(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fit(tmp_path, 1)
    fit(tmp_path, 2, save_top_k=1, log_every_n_steps=1, save_every_n_epochs=None, seed=None, monitor=None)
    assert not [record for record in caplog.records if record.levelno == logging.WARNING]


def test_a_checkpoint_without_the_record_goes_on_with_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fit(tmp_path, 1)
    for path in (tmp_path / "checkpoints").glob("step-*"):
        content = read_part(path / "rank-00000.pt")
        del content["identity"]
        write_part(path / "rank-00000.pt", content)
        manifest = read_manifest(path)
        files = manifest.files | {"rank-00000.pt": entry_of(path / "rank-00000.pt")}
        (path / "manifest.json").write_text(manifest.model_copy(update={"files": files}).to_text())
    fit(tmp_path, 2, batch_size=2)
    (warning,) = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert "is of an earlier version, without batch size, data, precision, optimizer: not compared" in warning


def other_data_on_one_rank(folder: Path) -> str:
    rank = GenericTrainer(GenericTrainerConfig(max_epochs=1, accelerator="cpu", devices=2)).fabric.global_rank
    fit(folder, 1, ranks=2)
    try:
        fit(folder, 2, ranks=2, data=values(seed=rank))
    except RunRefusedError as error:
        return str(error)
    return ""


def test_other_data_on_one_rank_are_refused_on_all(tmp_path: Path) -> None:
    first, second = on_ranks(other_data_on_one_rank, tmp_path)
    assert first == second
    assert "data: checkpoint TensorDataset of 16, CRC-32 " in first


def test_an_experiment_says_what_may_change() -> None:
    content = {
        "experiment_name": "one",
        "model": {"name": "net"},
        "training": {"batch_size": 4, "learning_rate": 0.1, "epochs": 3},
        "data": {"dataset_name": "none"},
        "optimizer": {"name": "sgd"},
        "checkpoint": {"resume_changes": ["learning_rate"]},
    }
    config = GenericTrainerConfig.from_experiment(ExperimentConfig.from_dict(content))
    assert config.resume_changes == ("learning_rate",)
    with pytest.raises(TrainerError, match=r"resume_changes is 'data'; expected names: \('data',\)"):
        GenericTrainerConfig(max_epochs=1, resume_changes="data")  # type: ignore[arg-type]


class Files(Dataset):  # type: ignore[misc]
    """Samples in files, whose folder is another at each start."""

    def __init__(self, folder: str, names: list[str], scale: float = 1.0) -> None:
        self.folder, self.scale = folder, scale
        self.paths = [f"{folder}/{name}" for name in names]
        self._reads = len(folder)

    def __len__(self) -> int:
        return len(self.paths)


def test_a_mark_is_of_the_data_and_not_of_their_place() -> None:
    large = torch.arange(3_000_000.0)
    changed = large.clone()
    changed[-1] = 0.0
    kinds: list[tuple[Any, Any]] = [
        (values(), values(1)),
        (values(), values(0, 18)),
        (TensorDataset(large), TensorDataset(changed)),
        (TensorDataset(large.repeat(2)), TensorDataset(changed.repeat(2))),
        (TensorDataset(torch.zeros(0, 2)), TensorDataset(torch.zeros(0, 3))),
        (TensorDataset(large.bfloat16()), TensorDataset(large.half())),
        (Subset(values(), [0, 2]), Subset(values(), [0, 1])),
        (ConcatDataset([values(), values(1)]), ConcatDataset([values(1), values()])),
        (Files("/job1/data", ["a.jpg", "b.jpg"]), Files("/job1/data", ["a.jpg", "c.jpg"])),
        (Files("/job1/data", ["a.jpg"]), Files("/job1/data", ["a.jpg"], scale=2.0)),
        ([{"x": np.arange(3)}], [{"x": np.arange(1, 4)}]),
        (["a text", "another"], ["a text", "anothex"]),
        (TensorDataset(torch.tensor([1 + 2j])), TensorDataset(torch.tensor([1 - 2j]))),
    ]
    for one, other in kinds:
        assert data_mark(DataLoader(one)) != data_mark(DataLoader(other)), one
    assert data_mark(Files("/job1/data", ["a.jpg"])) == data_mark(Files("/scratch/job2/data", ["a.jpg"]))
    assert data_mark(values()) == data_mark(values())
    assert data_mark(iter([1])).startswith("list_iterator, CRC-32 ")
