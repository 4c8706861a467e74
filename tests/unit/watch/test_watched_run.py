"""A watched run: silence is counted by a steady clock, and an end may be followed by a restart."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from predictor.watch.health import State
from predictor.watch.watched_run import WatchedRun

LOG = Path(__file__).resolve().parents[3] / "docs" / "gallery" / "llama-8b.log"
HEALTHY_LINES = 50
NEXT = next(
    line for line in LOG.read_text(encoding="utf-8").splitlines(keepends=True)[HEALTHY_LINES:] if "step:" in line
)
END = "[titan] 2026-11-27 08:59:00,000 - root - INFO - Training completed\n"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Return a log of healthy steps that was written this moment, with time stamps of another day."""
    lines = LOG.read_text(encoding="utf-8").splitlines(keepends=True)
    path = tmp_path / "train.log"
    path.write_text("".join(lines[:HEALTHY_LINES]), encoding="utf-8")
    return path


def read(path: Path, is_live: bool = True) -> WatchedRun:
    run = WatchedRun([str(path)], is_live=is_live)
    run.poll()
    return run


def test_time_stamps_of_another_zone_or_day_are_no_stall(log: Path) -> None:
    assert read(log).health().state is State.HEALTHY


def test_a_clock_that_jumps_is_no_stall(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = read(log)
    for jump in (1e6, -1e6):
        with monkeypatch.context() as patch:
            now = time.time()
            patch.setattr(time, "time", lambda at=now + jump: at)
            run.poll()
            assert run.health().state is State.HEALTHY


def test_silence_is_a_stall_until_the_next_step(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, steady = read(log), time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: steady() + 3600.0)
    assert run.health().state is State.STALLED
    with log.open("a", encoding="utf-8") as stream:
        stream.write(NEXT)
    run.poll()
    assert run.health().state is not State.STALLED


def test_a_log_that_nobody_writes_any_more_is_a_stall_from_the_first_look_on(log: Path) -> None:
    os.utime(log, (time.time() - 7200.0,) * 2)
    assert read(log).health().state is State.STALLED
    assert read(log, is_live=False).health().state is State.HEALTHY  # of a log that is read once nobody knows


def test_a_run_that_ended_may_begin_again(log: Path) -> None:
    with log.open("a", encoding="utf-8") as stream:
        stream.write(END)
    run = read(log)
    assert run.is_ended
    assert run.health().state is State.ENDED
    with log.open("a", encoding="utf-8") as stream:
        stream.write(NEXT)
    run.poll()
    assert not run.is_ended


def test_a_folder_counts_as_its_newest_file(log: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    shutil.copy(log, folder)
    assert read(folder).health().state is State.HEALTHY
    assert [text.count("torchtitan") for text in read(folder).descriptions] == [1]
