"""The trainer's telemetry: a line for every step of every rank, in the names of predictor.watch.events."""

from __future__ import annotations

import json
import os
import time
from dataclasses import fields
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch
from torch import nn

from model_training_framework.health.recorder import INTERVAL_S, Recorder, rank_file, state_of
from model_training_framework.trainer import GenericTrainer, GenericTrainerConfig
from model_training_framework.trainer.checkpoint import Checkpointer
from predictor.watch.events import COUNTERS, PARTS, Activity, End, Start, Step
from tests.trainer.two_ranks import on_ranks

KINDS = {"step": Step, "start": Start, "activity": Activity, "end": End}
STEPS = 12
PAUSE_S = 0.05


class Slowed(nn.Module):  # type: ignore[misc]
    """A layer that takes longer on one rank."""

    def __init__(self, pause_s: float = 0.0) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 1)
        self.register_buffer("scale", torch.ones(1))  # DDP broadcasts it before a forward pass
        self.pause_s = pause_s

    def forward(self, x: Any) -> Any:
        time.sleep(self.pause_s)
        return self.layer(x)


def train(folder: Path, model: nn.Module | None = None, **changes: Any) -> None:
    torch.set_num_threads(1)
    settings: dict[str, Any] = {"max_steps": STEPS, "devices": 1, "progress_bar": False, "accelerator": "cpu"}
    trainer = GenericTrainer(GenericTrainerConfig(experiment_dir=folder, **{**settings, **changes}))
    model = model or nn.Linear(8, 1)
    data = [(torch.randn(4, 8), torch.randn(4, 1)) for _ in range(40)]
    trainer.fit(model, torch.optim.SGD(model.parameters(), 0.01), data, data[:2])


def lines(folder: Path, rank: int = 0) -> list[dict[str, Any]]:
    return [json.loads(line) for line in rank_file(folder, rank).read_text(encoding="utf-8").splitlines()]


def steps_of(folder: Path, rank: int = 0) -> list[dict[str, Any]]:
    return [line for line in lines(folder, rank) if line["event"] == "step"]


def test_every_step_has_its_parts_counters_and_batch(tmp_path: Path) -> None:
    train(tmp_path, gradient_accumulation_steps=2)
    steps = steps_of(tmp_path)
    assert [step["number"] for step in steps] == list(range(1, STEPS + 1))
    for step in steps:
        assert step["samples"] == 8
        assert set(step["parts"]) == {"data", "forward", "backward", "optimizer"}
        assert 0.5 * step["seconds"] < sum(step["parts"].values()) <= step["seconds"] * 1.001
        assert set(step["counters"]) <= set(COUNTERS)
        assert 0 < step["memory_bytes"] < step["memory_limit_bytes"]


def test_lines_are_events_of_watch(tmp_path: Path) -> None:
    train(tmp_path, save_every_n_steps=5, validate_every_n_steps=4)
    found = lines(tmp_path)
    for line in found:
        kind = KINDS[line.pop("event")]
        assert line.keys() <= {field.name for field in fields(kind)}
        assert set(line.get("parts", ())) <= set(PARTS)
    assert found[0]["target_step"] == STEPS
    assert found[-1]["state"] == "COMPLETED"


def test_checkpoints_and_validations_are_beside_the_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save = Checkpointer.save

    def slow(*given: Any) -> Any:
        time.sleep(0.3)
        return save(*given)

    monkeypatch.setattr(Checkpointer, "save", slow)
    train(tmp_path, save_every_n_steps=5, validate_every_n_steps=4)
    found = [line for line in lines(tmp_path) if line["event"] == "activity"]
    assert {(line["part"], line["step"]) for line in found} >= {
        ("checkpoint", 5), ("checkpoint", 10), ("evaluation", 4), ("evaluation", 8)
    }  # fmt: skip
    assert all(line["seconds"] > 0.3 for line in found if line["part"] == "checkpoint")
    assert all(step["seconds"] < 0.3 for step in steps_of(tmp_path)[1:])


def test_a_resumed_run_appends_and_says_from_where(tmp_path: Path) -> None:
    train(tmp_path, max_steps=5)
    train(tmp_path, max_steps=9)
    starts = [line for line in lines(tmp_path) if line["event"] == "start"]
    assert [start.get("resumed_step") for start in starts] == [None, 5]
    assert [step["number"] for step in steps_of(tmp_path)] == list(range(1, 10))


def test_a_run_that_fails_says_so(tmp_path: Path) -> None:
    class Broken(nn.Linear):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            raise MemoryError

    with pytest.raises(MemoryError):
        train(tmp_path, Broken(8, 1))
    assert lines(tmp_path)[-1]["state"] == "OUT_OF_MEMORY"
    assert state_of(SystemExit(75)) == "PREEMPTED"
    assert state_of(ValueError()) == "FAILED"


def test_without_health_nothing_is_written(tmp_path: Path) -> None:
    train(tmp_path, health=False)
    assert not (tmp_path / "health").exists()


def test_a_folder_that_cannot_be_written_stops_no_training(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "health").write_text("in the way", encoding="utf-8")
    train(tmp_path)
    assert "the run has no telemetry" in caplog.text


def slow_rank(folder: Path) -> None:
    slow = (folder / "slow").read_text(encoding="utf-8")
    train(folder, Slowed(PAUSE_S * (os.environ["LOCAL_RANK"] == slow)), devices=2)


@pytest.mark.parametrize("slow", [0, 1])
def test_of_two_ranks_the_slow_one_waits_least(slow: int, tmp_path: Path) -> None:
    (tmp_path / "slow").write_text(str(slow), encoding="utf-8")
    on_ranks(slow_rank, tmp_path)
    slow_steps, others = (steps_of(tmp_path, rank)[2:] for rank in (slow, 1 - slow))
    waited = [median(step["parts"]["communication"] for step in steps) for steps in (slow_steps, others)]
    assert waited[1] > 0.7 * PAUSE_S
    assert waited[0] < 0.5 * waited[1]
    assert median(step["parts"]["forward"] for step in others) < 0.5 * PAUSE_S
    starts = [line for rank in (0, 1) for line in lines(tmp_path, rank) if line["event"] == "start"]
    assert [start["world_size"] for start in starts] == [2]  # rank 0 alone tells of the run
    assert {step["samples"] for step in steps_of(tmp_path)} == {8}


def test_steps_are_written_together_twice_a_second(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, 1, 2)
    recorder.start("test")
    recorder.step(1)
    assert rank_file(tmp_path, 1).read_bytes() == b""
    time.sleep(INTERVAL_S)
    recorder.step(2)
    assert len(steps_of(tmp_path, 1)) == 2
    recorder.end("COMPLETED")


class FakeEvent:
    """A CUDA event of a GPU that is some steps behind the host."""

    done = 0.0
    clock = 0.0

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        FakeEvent.clock += 0.002
        self.at = FakeEvent.clock

    def query(self) -> bool:
        return self.at <= FakeEvent.done

    def synchronize(self) -> None:
        FakeEvent.done = max(FakeEvent.done, self.at)

    def elapsed_time(self, end: FakeEvent) -> float:
        return 1e3 * (end.at - self.at)


def test_on_a_gpu_a_step_is_written_once_its_events_have_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    stats = {"num_alloc_retries": 3, "reserved_bytes": {"all": {"current": 5e9}}}
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", lambda _: stats)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: type("P", (), {"total_memory": 80e9}))
    recorder = Recorder(tmp_path, 0, 1, torch.device("cuda", 0))
    recorder.start("test")
    for number in (1, 2, 3):
        recorder.enter("data")
        recorder.enter("forward")
        if number == 3:
            FakeEvent.done = steps_end = FakeEvent.clock - 0.004  # the GPU has ended step 2
            assert steps_end > 0
        recorder.step(number)
    recorder._write()
    assert [step["number"] for step in steps_of(tmp_path)] == [1, 2]
    recorder.end("COMPLETED")
    steps = steps_of(tmp_path)
    assert [step["number"] for step in steps] == [1, 2, 3]
    assert steps[1]["seconds"] == pytest.approx(0.006)
    assert steps[1]["parts"] == {"data": pytest.approx(0.002), "forward": pytest.approx(0.002)}
    assert (steps[0]["memory_bytes"], steps[0]["memory_limit_bytes"]) == (5e9, 80e9)
    assert steps[0]["counters"]["allocator_retries"] == 3
