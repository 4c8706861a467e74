"""The benchmark of measuring reads what the commands print, and says in one line what it could not do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import bench_profile
from tests.unit.microbench.test_table import write

SCORES = {"operators": {"mape": 5.38}, "collectives": {"mape": None}}


def test_rows_are_what_the_commands_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = {"fit": json.dumps(SCORES), "held-out": "a table", "repeatability": json.dumps({"median_gap": 0.021})}
    monkeypatch.setattr(bench_profile, "python", lambda *words: (10.0, said.get(words[1], "")))
    monkeypatch.setattr(bench_profile, "noise", lambda results, kind: 0.104)
    rows = {row.name: row.here for row in bench_profile.smoke(tmp_path)}
    assert rows["smoke profile: operators and collectives"] == "20 s"
    assert rows["held-out MAPE, operators"] == "5.4 %"
    assert rows["held-out MAPE, collectives"] == "none fitted"
    assert rows["  noise of their rows (IQR ÷ median)"] == "10.4 %"
    assert bench_profile.repeatability().here == "2.1 %"


def test_noise_is_the_tables_own(tmp_path: Path) -> None:
    write(tmp_path / "operator" / "gelu_fp32.0of1.csv", [(64, 128)])
    assert 0.0 <= bench_profile.noise(tmp_path, "operator") < 1.0


def test_a_failed_step_is_one_line() -> None:
    with pytest.raises(SystemExit, match="ended with 2: out of luck"):
        bench_profile.run("python3", "-c", "import sys; print('out of luck', file=sys.stderr); sys.exit(2)")


def test_without_slurm_a_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench_profile, "missing", lambda: ["sbatch"])
    assert list(bench_profile.slurm(tmp_path)) == []
    assert capsys.readouterr().out == "no Slurm can be started here (sbatch missing): its overhead is not timed\n"
