"""Health of experiments in ``status``: read of a beginning and an end, however long the file is."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest

from model_training_framework.run_health import HEAD_BYTES, TAIL_BYTES, health_of
from predictor.watch.health import State

PREDICTED = {"step_s": 1.0, "low_step_s": 0.7, "high_step_s": 1.5, "tokens_per_second": 1000.0, "system": "H100"}


def write(path: Path, count: int, slower_from: int | None = None) -> None:
    """Write the steps of a run of 0.9 s a step, later 1.2 s."""
    random = Random(0)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as stream:
        for step in range(1, count + 1):
            level = 1.2 if slower_from is not None and step >= slower_from else 0.9
            line = {"phase": "train", "step": step, "epoch": 0, "loss": 2.0, "lr": 1e-4}
            stream.write(json.dumps(line | {"step_time_s": level * random.gauss(1.0, 0.01)}) + "\n")


def test_a_healthy_run_is_beside_its_prediction(tmp_path: Path) -> None:
    write(tmp_path / "steps.jsonl", 300)
    health = health_of(tmp_path, PREDICTED, None)
    assert health is not None
    assert health.state is State.HEALTHY
    assert health.median_s == pytest.approx(0.9, rel=0.01)
    assert health.expected is not None
    assert health.expected.seconds == 1.0
    assert health.expected.tokens == 1000.0


def test_a_long_run_that_became_slower_is_told_by_its_beginning_and_its_end(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    write(path, 50_000, slower_from=30_000)
    assert path.stat().st_size > 10 * (HEAD_BYTES + TAIL_BYTES)
    health = health_of(tmp_path, PREDICTED, None)
    assert health is not None
    assert (health.state, health.last_step) == (State.SLOWER, 50_000)
    assert health.median_s == pytest.approx(1.2, rel=0.01)


def test_ranks_telemetry_counts_before_the_steps(tmp_path: Path) -> None:
    write(tmp_path / "steps.jsonl", 10)
    for rank in range(2):
        lines = [{"number": n, "seconds": 1.0 + 0.001 * (n % 7), "at": 100.0 + n} for n in range(1, 101)]
        path = tmp_path / "health" / f"rank-{rank:05d}.jsonl"
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    health = health_of(tmp_path, None, now=10_000.0)
    assert health is not None
    assert (health.state, health.last_step) == (State.STALLED, 100)


@pytest.mark.parametrize("content", [b"", b"\xff\xfe{", b'{"step": 1', b"[]\n" * 9])
def test_files_without_a_step_have_no_health(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "steps.jsonl").write_bytes(content)
    assert health_of(tmp_path, {"step_s": "x"}, 0.0) is None
    assert health_of(tmp_path / "absent", None, None) is None
