"""JSON lines of telemetry outlive a killed process, a full disk and an endless run."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from model_training_framework.health import lines
from model_training_framework.health.lines import JsonLines


def read(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_a_restart_appends_behind_half_a_line(tmp_path: Path) -> None:
    path = tmp_path / "health" / "rank-00000.jsonl"
    first = JsonLines(path)
    first.add({"number": 1})
    first.close()
    with path.open("a", encoding="utf-8") as stream:
        stream.write('{"numb')
    second = JsonLines(path)
    second.add({"number": 2})
    second.close()
    text = path.read_text(encoding="utf-8").splitlines()
    assert [json.loads(text[0]), text[1], json.loads(text[2])] == [{"number": 1}, '{"numb', {"number": 2}]


def test_numbers_that_json_cannot_say_are_null(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    written = JsonLines(path)
    written.add({"loss": float("nan"), "seconds": 0.5})
    written.close()
    assert read(path) == [{"loss": None, "seconds": 0.5}]


def test_a_full_disk_is_said_once_and_the_newest_lines_are_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "lines"
    written = JsonLines(path)
    room = {"bytes": 3}

    def write(descriptor: int, data: bytes) -> int:
        return os.pwrite(descriptor, data[: room["bytes"]], os.fstat(descriptor).st_size)

    monkeypatch.setattr("model_training_framework.health.lines.os.write", write)
    for number in range(lines.KEPT_LINES + 5):
        written.add({"number": number})
        if number < 3:
            written.write()
    assert path.read_bytes() == b""
    assert sum("disk is full" in record.getMessage() for record in caplog.records) == 1
    room["bytes"] = 1 << 30
    written.close()
    assert [line["number"] for line in read(path)] == list(range(5, lines.KEPT_LINES + 5))


def test_a_file_at_its_limit_begins_anew_and_one_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    written = JsonLines(path, limit_bytes=100)
    for number in range(100):
        written.add({"number": number})
        written.write()
    written.close()
    older = path.with_name("lines.1")
    numbers = [line["number"] for line in read(older) + read(path)]
    assert numbers == list(range(numbers[0], 100))
    assert older.stat().st_size + path.stat().st_size < 250
