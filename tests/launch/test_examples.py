"""The example scripts run as they are, in a copy of their folder that is a git repository of its own."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "slurm" / "examples"
SCRIPTS = ("basic_training", "custom_trainer", "preemption_handling", "grid_search", "slurm_batch")
with_torch = pytest.mark.skipif(
    not (find_spec("torch") and find_spec("lightning_fabric")), reason="no torch here; make check-profile runs it"
)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a repository that holds the examples at their place, so that the tests' own need not be clean."""
    folder = tmp_path_factory.mktemp("project")
    shutil.copytree(EXAMPLES, folder / "slurm" / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / ".gitignore").write_text("__pycache__/\n/out*/\n")
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "Examples"]):
        subprocess.run(["git", "-c", "user.email=a@b", "-c", "user.name=a", *words], cwd=folder, check=True)
    return folder


def run(project: Path, script: str, *words: str) -> str:
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(str(folder) for folder in (ROOT, ROOT / "slurm")),
        # The commands of experiments start python; two at once have two cores.
        "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, f"slurm/examples/{script}.py", *words],
        cwd=project, env=environment, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def losses(folder: Path) -> list[float]:
    rows = [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]
    return [row["loss"] for row in rows if row["phase"] == "train"]


def test_every_documented_example_is_there_and_found_from_the_documents() -> None:
    text = (ROOT / "docs" / "launch.md").read_text(encoding="utf-8")
    for script in SCRIPTS:
        assert (EXAMPLES / f"{script}.py").is_file()
        assert f"../slurm/examples/{script}.py" in text


def test_grid_search_predicts(project: Path) -> None:
    printed = run(project, "grid_search", "dry_run", "out-nothing")
    assert printed.count("copy_") == 5
    assert printed.endswith("5 planned\n")
    assert not (project / "out-nothing").exists()


@with_torch
def test_basic_training_learns_and_is_done_when_it_runs_again(project: Path) -> None:
    first = run(project, "basic_training", "out-basic")
    assert float(first.split()[-1]) < 0.2
    count = len(losses(project / "out-basic"))
    assert count == 320
    assert run(project, "basic_training", "out-basic").splitlines()[-1].startswith("step 320")
    assert len(losses(project / "out-basic")) == count, "nothing is trained twice"


@with_torch
def test_custom_trainer_reports_every_epoch(project: Path) -> None:
    printed = run(project, "custom_trainer", "out-custom")
    shares = [float(share) for share in re.findall(r"^epoch \d: ([\d.]+)%", printed, re.MULTILINE)]
    assert len(shares) == 8
    assert shares[-1] < 0.5 * shares[0]


@with_torch
def test_preemption_changes_no_loss(project: Path) -> None:
    printed = run(project, "preemption_handling", "out-preemption")
    assert "with status 75" in printed
    assert "60 losses, all equal to those of the undisturbed run" in printed


@with_torch
def test_grid_search_runs_here(project: Path) -> None:
    printed = run(project, "grid_search", "local", "out-grid")
    assert "5 completed" in printed
    folders = sorted((project / "out-grid").glob("copy_*"))
    assert len(folders) == 5
    assert all(len(losses(folder)) == 20 for folder in folders)
    again = run(project, "grid_search", "local", "out-grid")
    assert again.count("completed, earlier") == 5


@with_torch
def test_slurm_batch_runs_here_too(project: Path) -> None:
    printed = run(project, "slurm_batch", "out-batch", "local")
    assert "4 submitted, 0 there already, 0 failed (local)" in printed
    assert printed.count(": COMPLETED") == 4
    assert all(losses(project / "out-batch" / f"copy-seed-{seed}")[-1] > 0 for seed in range(4))
