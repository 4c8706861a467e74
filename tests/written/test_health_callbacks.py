"""Callbacks write telemetry from the real Trainers of Hugging Face and Lightning."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.written.judges import FOLDER, ROOT

STEPS, TOKENS = 12, 2 * 2 * 16


@pytest.mark.parametrize(
    ("name", "package"), [("hugging_face", "accelerate-1.15.0"), ("lightning", "pytorch-lightning-2.6.6")]
)
def test_a_trainer_with_the_callback_writes_every_step(name: str, package: str, tmp_path: Path) -> None:
    events = trained(name, package, tmp_path)
    steps = [event for event in events if event["event"] == "step"]
    assert [step["number"] for step in steps] == list(range(1, STEPS + 1))
    assert {(step["tokens"], step["samples"], step["sequence_length"]) for step in steps} == {(TOKENS, 4, 16)}
    for step in steps:
        assert {"data", "forward", "backward", "optimizer"} <= step["parts"].keys()
        assert 0 < sum(step["parts"].values()) <= step["seconds"] * 1.001
        assert step["loss"] > 0
    kinds = {(event["part"], event["step"]) for event in events if event["event"] == "activity"}
    assert kinds >= {("checkpoint", 6), ("checkpoint", 12), ("evaluation", 6)}
    assert events[0]["event"] == "start"
    assert (events[0]["target_step"], events[0]["world_size"]) == (STEPS, 1)
    assert (events[-1]["event"], events[-1]["state"]) == ("end", "COMPLETED")


def trained(name: str, package: str, folder: Path) -> list[dict[str, Any]]:
    """Return the lines that a training in another process wrote."""
    place = FOLDER / package
    if not place.is_dir() or find_spec("torch") is None:
        pytest.skip(f"{package} is not in {FOLDER}: make judges")
    paths = [place, ROOT, ROOT / "slurm"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), "OMP_NUM_THREADS": "1"}
    program = str(Path(__file__).with_name("run_health.py"))
    command = [sys.executable, program, name, str(folder)]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=folder)
    assert ran.returncode == 0, ran.stderr[-3000:]
    text = (folder / "health" / "rank-00000.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]
