"""Every block and every shell line of docs/launch.md runs as written, in a folder that holds what it shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from model_training_framework.__main__ import main
from tests.launch.fake_slurm import FakeSlurm, fake_slurm

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs" / "launch.md"
TEXT = DOCUMENT.read_text(encoding="utf-8")
YAML = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
PYTHON = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
SHELL = [line.partition("  #")[0].split() for line in re.findall(r"^    python -m (.*)$", TEXT, re.MULTILINE)]
NAME = "llama-1b"
HAS_TORCH = bool(find_spec("torch") and find_spec("lightning_fabric"))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the reader's folder, with the files that the document shows."""
    found = tmp_path / "project"
    found.mkdir()
    for name, text in zip(("experiment.yaml", "grid.yaml"), YAML, strict=True):
        (found / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(found)
    return found


def python(*words: str, status: int = 0) -> str:
    path = os.pathsep.join(str(folder) for folder in (ROOT, ROOT / "slurm"))
    done = subprocess.run(
        [sys.executable, *words], env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == status, done.stderr
    return done.stdout


@pytest.mark.parametrize("block", PYTHON, ids=lambda block: block.strip().splitlines()[-1])
def test_python_block(block: str, folder: Path) -> None:
    if "torch" in block and not HAS_TORCH:
        pytest.skip("no torch here; make check-profile runs it")
    *_, last = python("-c", block).splitlines()
    if "torch" in block:
        assert int(last) == 24, "3 epochs of 64 samples, 8 at a time"
        assert (folder / "run" / "checkpoints").is_dir()
    else:
        assert last.startswith(f"{NAME}_")
        assert "training.batch_size" in last
        assert not (folder / "experiments").exists(), "DRY_RUN writes nothing"


def test_there_are_blocks_with_and_without_torch() -> None:
    assert sorted("torch" in block for block in PYTHON) == [False, True]
    assert {line[1] for line in SHELL} == {"grid", "submit", "status", "logs", "cancel"}


def test_shell_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """One after the other, as they stand; the cluster is recorded answers."""
    slurm: FakeSlurm = fake_slurm(tmp_path / "slurm-bin", monkeypatch)
    slurm.answer("squeue", "100|RUNNING|None|submit.sbatch\n")
    said = {}
    for module, *words in SHELL:
        assert module == "model_training_framework"
        if words[0] == "logs":
            Path("experiments", NAME, "logs", "slurm-100.out").write_text("loss 2.5\n")
        status = 1 if words[0] == "grid" else 0  # batch size 16 is refused
        assert main([word.replace("NAME", NAME) for word in words]) == status, words
        said[words[0]] = capsys.readouterr().out
    rows = [line for line in said["grid"].splitlines() if line.startswith(f"{NAME}_") and ": " not in line]
    assert [" planned " in row for row in rows] == 6 * [True] + 2 * [False]
    assert "6 planned, 2 refused" in said["grid"]
    assert "100" in said["submit"]
    assert "RUNNING" in said["status"]
    assert said["logs"] == "loss 2.5\n"
    assert said["cancel"] == f"{NAME}: cancelled\n"
    assert slurm.calls("scancel") == ["100"]
    assert main(["cancel", "--all"]) == 0


def test_the_two_grids_and_the_shown_table_are_one() -> None:
    (block,) = [block for block in PYTHON if "torch" not in block]
    printed = python("-c", block).splitlines()[:-1]
    assert "\n".join(printed) == python("-m", *SHELL[0], status=1).rstrip("\n")

    rows = re.search(r"(?s)```\n(experiment .*?)…\n(llama-1b_.*?)```", TEXT)
    assert rows is not None
    assert set((rows[1] + rows[2]).splitlines()) <= set(printed), "docs/launch.md shows rows of this table"


def test_the_predictor_reads_the_experiment() -> None:
    (line,) = re.findall(r"`python -m (predictor \S+)`", TEXT)
    printed = python("-m", *line.split())
    assert printed.startswith("Step time")
    assert "50,000 steps" in printed
