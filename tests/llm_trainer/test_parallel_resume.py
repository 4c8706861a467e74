"""A killed run of any layout goes on where it stopped, and ends where an undisturbed one does, bit by bit."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from llm_trainer.models import TransformerLM
from tests.llm_trainer.parallel_job import Run, logs, start

TIMES = {"step_time_s", "time_s"}
DROPOUT = {"dropout": 0.1, "attention_dropout": 0.1}
# SIGKILL loses what is not yet saved; SIGTERM saves within a step, with the gradients of some of its micro-batches.
LAYOUTS: dict[str, tuple[dict[str, Any], int]] = {
    "ZeRO 1": ({"zero_stage": 1}, signal.SIGTERM),
    "ZeRO 3": ({"zero_stage": 3}, signal.SIGTERM),
    "tensor": ({"tensor_parallel_size": 2}, signal.SIGTERM),
    "1F1B": ({"pipeline_parallel_size": 2}, signal.SIGKILL),
    "zero bubble": ({"pipeline_parallel_size": 2, "pipeline_schedule": "zero_bubble_h1"}, signal.SIGTERM),
}


def lines(folder: Path) -> list[dict[str, Any]]:
    content = [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name not in TIMES} for line in content]


def weights(folder: Path) -> dict[str, Any]:
    return dict(TransformerLM.from_pretrained(folder / "model").state_dict())


@pytest.mark.parametrize("name", LAYOUTS)
def test_killed_and_resumed_equals_undisturbed(name: str, tmp_path: Path) -> None:
    training, number = LAYOUTS[name]
    run = Run(2, training, DROPOUT)
    reference, resumed = tmp_path / "reference", tmp_path / "resumed"
    assert start(run, reference) == [0, 0], logs(reference)
    calls = torch.load(reference / "result-1")["calls"]
    codes = start(replace(run, kill_at=int(0.6 * calls), signal=number), resumed)
    assert codes == [75, 75] if number == signal.SIGTERM else -signal.SIGKILL in codes, logs(resumed)
    assert start(run, resumed) == [0, 0], logs(resumed)
    assert 0 < torch.load(resumed / "result-1")["resumed_at"] < 4
    assert lines(resumed) == lines(reference)
    torch.testing.assert_close(weights(resumed), weights(reference), rtol=0.0, atol=0.0)


def test_another_layout_does_not_go_on(tmp_path: Path) -> None:
    run = Run(2, {"zero_stage": 1, "max_steps": 1}, has_evaluation=False)
    assert start(run, tmp_path) == [0, 0], logs(tmp_path)
    other = replace(run, training={"tensor_parallel_size": 2, "max_steps": 2})
    assert all(start(other, tmp_path))
    assert "was written in another layout; go on with that layout" in logs(tmp_path)


@pytest.mark.parametrize("training", [{"zero_stage": 1}, {"zero_stage": 3}, {"pipeline_parallel_size": 2}])
def test_another_learning_rate_is_refused_or_taken_in_any_layout(training: dict[str, Any], tmp_path: Path) -> None:
    run = Run(2, {**training, "max_steps": 1}, has_evaluation=False)
    assert start(run, tmp_path) == [0, 0], logs(tmp_path)
    other = {**training, "max_steps": 2, "learning_rate": 2e-2}
    assert all(start(replace(run, training=other), tmp_path))
    assert "learning_rate: checkpoint 0.01, now 0.02. Set it back" in logs(tmp_path)
    taken = replace(run, training={**other, "resume_changes": ["learning_rate"]})
    assert start(taken, tmp_path) == [0, 0], logs(tmp_path)
    assert [line["lr"] for line in lines(tmp_path)] == [0.005, 0.02]
