"""Every command line of docs/verification.md runs as written, in a folder that holds what it shows."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path

import pytest

from predictor.__main__ import main
from predictor.replay.files.verified_run import VerifiedRun
from tests.unit.examples import full_form
from tests.unit.fake_runner import fake_python
from tests.unit.measured_runs import write_launch

DOCS = Path(__file__).resolve().parents[3] / "docs"
TEXT = (DOCS / "verification.md").read_text(encoding="utf-8")
LINES = [line.partition("  #")[0] for line in re.findall(r"^    python -m predictor (.*)$", TEXT, re.MULTILINE)]


def block(language: str) -> str:
    (text,) = re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)
    return str(text)


def test_every_line_runs_as_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "executable", fake_python(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gpt.yaml").write_text(block("yaml"), encoding="utf-8")
    (tmp_path / "runs.csv").write_text(block("csv"), encoding="utf-8")
    write_launch(tmp_path / "experiments" / "job", full_form(), 2)
    assert len(LINES) == 8
    for line in LINES:
        assert main(shlex.split(line)) == 0, f"{line}: {capsys.readouterr().err}"
        told = capsys.readouterr()
        assert ("launch 1 of 2" in told.err) is (line is LINES[0]), "only the first line runs anything"
        if "--json" in line:
            assert json.loads(told.out)["summary"]["runs"] >= 1
        else:
            assert "inside the 90 % interval" in told.out or "outside the 90 % interval" in told.out
    assert (tmp_path / "page.html").is_file()
    stored = {path.name for path in next(tmp_path.glob("results/verify/*")).rglob("*") if path.is_file()}
    assert {"config.yaml", "comparison.json", "rank-00000.json", "rank-00001.json", "log.txt"} <= stored


def test_every_key_of_a_verified_run_is_documented() -> None:
    text = (DOCS / "json.md").read_text(encoding="utf-8")
    section = text[text.index("### A verified run") :]
    assert [name for name in VerifiedRun.model_fields if f"`{name}`" not in section] == []
