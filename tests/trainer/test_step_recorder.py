"""Measured steps are records of spans with provenance that the predictor's timeline reads."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch
from torch import nn

from model_training_framework.trainer import (
    GenericTrainer,
    GenericTrainerConfig,
    StepRecorder,
    TrainerError,
    read_measured_steps,
)
from predictor.__main__ import main


def record(folder: Path, steps: int = 6, **changes: Any) -> Path:
    torch.set_num_threads(1)
    settings: dict[str, Any] = {
        "max_steps": 9,
        "gradient_accumulation_steps": 3,
        "description": {"model": {"name": "m"}},
    }
    config = GenericTrainerConfig(accelerator="cpu", devices=1, experiment_dir=folder, **{**settings, **changes})
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 1))
    trainer, recorder = GenericTrainer(config), StepRecorder(steps=steps, warm_up=2)
    trainer.add_callback(recorder)
    data = [(torch.randn(32, 64), torch.randn(32, 1)) for _ in range(9)]
    trainer.fit(model, torch.optim.SGD(model.parameters(), 0.01), data)
    assert recorder.path is not None
    return recorder.path


def test_a_record_reads_as_spans_with_provenance(tmp_path: Path) -> None:
    measured = read_measured_steps(record(tmp_path))
    told = measured.provenance
    assert len(told.samples_us) == 6
    assert told.step_us == median(told.samples_us)
    assert (told.first_step, told.warm_up, told.num_micro_batches) == (3, 2, 3)
    assert told.configuration == {"model": {"name": "m"}}
    assert told.versions["torch"] == torch.__version__
    assert told.device
    assert told.commit
    compute = [span for span in measured.spans if span.stream == "compute"]
    assert [(span.name, span.details["micro_batch"]) for span in compute] == [
        (name, i) for i in range(3) for name in ("forward", "backward")
    ]
    assert {span.rank for span in measured.spans} == {0}
    assert [span.name for span in measured.spans if span.stream == "optimizer"] == ["optimizer"]
    assert all(one.end_us <= two.start_us + 1e-3 for one, two in pairwise(compute))


def test_parts_add_up_to_the_step(tmp_path: Path) -> None:
    told = read_measured_steps(record(tmp_path)).provenance
    for number, sample in enumerate(told.samples_us):
        assert sum(part[number] for part in told.parts_us.values()) == pytest.approx(sample, abs=0.01)


def test_training_that_ends_early_leaves_what_there_is(tmp_path: Path) -> None:
    assert len(read_measured_steps(record(tmp_path, steps=100)).provenance.samples_us) == 7


def test_any_recorded_run_is_verified(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    description = {
        "system": "H100",
        "model": {"num_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "sequence_length": 32},
        "training": {"micro_batch_size": 32, "num_micro_batches": 3},
    }
    record(tmp_path, description=description)
    assert main(["verify", "--run", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert "on H100: predicted" in told
    assert "Operators: not recorded in this run." in told


def test_what_is_no_record_is_said(tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_text('{"traceEvents": []}')
    with pytest.raises(TrainerError, match="is no measured step"):
        read_measured_steps(tmp_path / "trace.json")
    with pytest.raises(TrainerError, match="steps is 0"):
        StepRecorder(steps=0)
