"""Every command line of docs/replay.md runs as written, and says what the page promises."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

from predictor.__main__ import main
from predictor.replay.files.kineto import read_trace
from predictor.replay.question import ReplayQuestion, answer
from predictor.replay.record import read_record
from predictor.replay.text import render
from predictor.replay.whatif.changes import CHANGES, PATTERN_KEYS

DOCS = Path(__file__).resolve().parents[3] / "docs"
TEXT = (DOCS / "replay.md").read_text(encoding="utf-8")
LINES = re.findall(r"^    python -m predictor (.*)$", TEXT, re.MULTILINE)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(DOCS / "traces", tmp_path / "docs" / "traces")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("line", LINES)
def test_every_line_runs_as_written(line: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [path for word in shlex.split(line) for path in sorted(map(str, Path().glob(word))) or [word]]
    assert main(words) == 0, capsys.readouterr().err
    told = capsys.readouterr().out
    if "--json" in line:
        document = json.loads(told)
        assert abs(document["replayed"]["error"]) < 0.02
        assert (document["changed"] is None) is ("--set" not in line)
    else:
        assert told.startswith("Step time ")
        assert ("Changed " in told) is ("--set" in line)
    if "--report" in line:
        assert "overlap=false" in (folder / "page.html").read_text(encoding="utf-8")
        assert len(read_trace(folder / "changed.json").events) > 1000
    if "--record" in line:
        records = [read_record(path) for path in sorted((folder / "records").iterdir())]
        assert [record.rank for record in records] == [0, 1]
        assert {"aten::addmm", "aten::mm"} <= {row.name for record in records for row in record.operators}


def test_the_shown_answers_are_those_of_the_lines() -> None:
    step = re.compile(r"^(?:Step time|Replay|Changed) .*$", re.MULTILINE)
    shown = re.findall(r"```text\n(.*?)```", TEXT, re.DOTALL)
    traces = str(DOCS / "traces")
    for block, changes in zip(shown, ([], ["operator:aten::linear*=0.5"]), strict=True):
        answered = answer(ReplayQuestion([traces], changes=changes))
        assert step.findall(block) == step.findall(render(answered))


def test_every_change_is_told_of() -> None:
    for key in CHANGES:
        assert f"`{key}:PATTERN" in TEXT if key in PATTERN_KEYS else f"`{key}" in TEXT


def test_the_traces_are_small() -> None:
    assert sum(path.stat().st_size for path in (DOCS / "traces").iterdir()) < 100_000
