"""A run that does not fit says so before its time, in text and JSON, and with its exit code where that is asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from predictor.__main__ import main

Capture = pytest.CaptureFixture[str]


def write(path: Path, memory_gib: float) -> str:
    content: dict[str, Any] = {
        "system": "Perlmutter",
        "model": {"num_layers": 8, "hidden_size": 2048, "num_attention_heads": 16, "sequence_length": 2048},
        "training": {"micro_batch_size": 1, "num_micro_batches": 1},
        "cluster": {"memory_gib": memory_gib},
    }
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(("memory_gib", "title", "code"), [(80.0, "Step time", 0), (4.0, "Memory", 3)])
def test_what_does_not_fit_is_said_first(
    memory_gib: float, title: str, code: int, tmp_path: Path, capsys: Capture
) -> None:
    path = write(tmp_path / "run.yaml", memory_gib)
    assert main([path]) == 0
    assert capsys.readouterr().out.startswith(title)
    assert main([path, "--require-fit"]) == code
    text = capsys.readouterr().out
    assert text.startswith(title)
    assert ("DOES NOT FIT" in text) is (code == 3)


@pytest.mark.parametrize(("memory_gib", "code"), [(80.0, 0), (4.0, 3)])
def test_json_says_whether_it_fits_before_the_time(
    memory_gib: float, code: int, tmp_path: Path, capsys: Capture
) -> None:
    assert main([write(tmp_path / "run.yaml", memory_gib), "--json", "--require-fit"]) == code
    content = json.loads(capsys.readouterr().out)
    assert list(content)[:3] == ["format", "memory", "step"]
    assert content["memory"]["fits"] is (code == 0)
    assert content["memory"]["available_gib"] == memory_gib
    assert content["memory"]["total_gib"] == content["stages"][content["memory"]["stage"]]["memory"]["total_gib"]
