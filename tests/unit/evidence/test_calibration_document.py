"""The lines of docs/calibration.md run, one after the other, on the files that it shows."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from predictor.__main__ import main

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "calibration.md"
PROGRAM = "python -m predictor "


def test_the_lines_of_the_document_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    (table,) = re.findall(r"```csv\n(.*?)```", text, re.DOTALL)
    (configuration,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    (tmp_path / "runs.csv").write_text(table, encoding="utf-8")
    (tmp_path / "gpt.yaml").write_text(configuration, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    lines = [line.strip().removeprefix(PROGRAM) for line in text.splitlines() if line.startswith(f"    {PROGRAM}")]
    assert len(lines) == 4
    for line in lines:
        assert main(shlex.split(line)) == 0, line
    printed = capsys.readouterr()
    assert "leaving one out" in printed.out
    assert "my-cluster" in printed.out
