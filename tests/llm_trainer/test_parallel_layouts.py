"""A layout over ranks trains to the losses and weights of one process on the same global batches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from llm_trainer.models import TransformerLM
from tests.llm_trainer.parallel_job import LLAMA, Run, logs, start

DEEP = {"n_layers": 4}
LAYOUTS: dict[str, tuple[int, dict[str, Any], dict[str, Any]]] = {
    "DDP": (2, {}, {}),
    "ZeRO 1": (2, {"zero_stage": 1}, {}),
    "ZeRO 2": (2, {"zero_stage": 2}, {}),
    "ZeRO 3": (2, {"zero_stage": 3}, LLAMA),
    "tensor": (2, {"tensor_parallel_size": 2}, {}),
    "tensor, LLaMA": (2, {"tensor_parallel_size": 2}, LLAMA),
    "1F1B": (2, {"pipeline_parallel_size": 2}, {}),
    "interleaved": (
        2,
        {"pipeline_parallel_size": 2, "pipeline_schedule": "interleaved_1f1b", "num_chunks": 2},
        DEEP,
    ),
    "zero bubble": (2, {"pipeline_parallel_size": 2, "pipeline_schedule": "zero_bubble_h1"}, LLAMA),
    "1F1B with ZeRO 1": (4, {"pipeline_parallel_size": 2, "zero_stage": 1}, {}),
    "tensor with ZeRO 3": (4, {"tensor_parallel_size": 2, "zero_stage": 3}, LLAMA),
}


def losses(folder: Path) -> tuple[list[float], list[float]]:
    lines = [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]
    steps = [line["loss"] for line in lines if line["phase"] == "train"]
    return steps, [line["val_loss"] for line in lines if line["phase"] == "validation"]


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {}


def reference(model: dict[str, Any], references: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run of one process, made once for every model."""
    key = str(sorted(model.items()))
    if key not in references:
        references[key] = tmp_path_factory.mktemp("reference")
        assert start(Run(model=model), references[key]) == [0], logs(references[key])
    return references[key]


@pytest.mark.parametrize("name", LAYOUTS)
def test_layout_trains_as_one_process(
    name: str, references: dict[str, Path], tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    ranks, training, model = LAYOUTS[name]
    expected = reference(model, references, tmp_path_factory)
    assert start(Run(ranks, training, model), tmp_path) == [0] * ranks, logs(tmp_path)
    for here, there in zip(losses(tmp_path), losses(expected), strict=True):
        assert len(here) == len(there) > 1
        assert here == pytest.approx(there, rel=1e-5)
    weights = TransformerLM.from_pretrained(tmp_path / "model").state_dict()
    expected_weights = TransformerLM.from_pretrained(expected / "model").state_dict()
    torch.testing.assert_close(dict(weights), dict(expected_weights), rtol=1e-4, atol=1e-5)


def test_pipeline_takes_an_epochs_uneven_end(tmp_path: Path) -> None:
    """26 samples: the last of 7 micro-batches is short, and the last step has no second one."""
    alone, pipeline = tmp_path / "alone", tmp_path / "pipeline"
    assert start(Run(samples=26), alone) == [0], logs(alone)
    assert start(Run(2, {"pipeline_parallel_size": 2}, samples=26), pipeline) == [0, 0], logs(pipeline)
    for here, there in zip(losses(pipeline), losses(alone), strict=True):
        assert here == pytest.approx(there, rel=1e-5)
    assert len(losses(alone)[0]) == 4
