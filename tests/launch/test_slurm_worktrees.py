"""Jobs run a commit in a worktree of their own, which goes once they have ended."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from model_training_framework.config import ExecutionMode
from model_training_framework.slurm import GitManager, GitOperationError, SLURMLauncher
from tests.launch.fake_slurm import FakeSlurm, experiment, fake_slurm


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    return fake_slurm(tmp_path / "bin", monkeypatch)


@pytest.fixture
def git(tmp_path: Path) -> GitManager:
    project = tmp_path / "project"
    project.mkdir()
    for words in (["init", "-q"], ["config", "user.name", "A"], ["config", "user.email", "a@example.org"]):
        subprocess.run(["git", *words], cwd=project, check=True)
    return GitManager(project)


def worktree(launcher: SLURMLauncher, name: str) -> Path:
    return Path(json.loads((launcher.output_dir / name / "submission.json").read_text())["worktree"])


def test_jobs_run_a_commit(slurm: FakeSlurm, git: GitManager, tmp_path: Path) -> None:
    script = git.root / "train.py"
    script.write_text("one\n")
    commit = git.commit_changes("first", add_all=True)
    launcher = SLURMLauncher(output_dir=tmp_path / "out", git_manager=git)
    script.write_text("two\n")
    with pytest.raises(GitOperationError, match=r"train.py; commit them, or allow that with allow_dirty=True"):
        launcher.submit_experiment(experiment())
    assert f"cd {tmp_path}/out/.worktrees" in launcher.submit_experiment(experiment(), ExecutionMode.DRY_RUN)
    launcher.allow_dirty = True
    launcher.submit_experiment(experiment())
    place = worktree(launcher, "one")
    assert json.loads((tmp_path / "out" / "one" / "submission.json").read_text())["commit"] == commit
    assert (place / "train.py").read_text() == "one\n"
    slurm.answer("squeue", "100|PENDING|None|x\n")
    assert launcher.prune_worktrees() == []
    slurm.answer("squeue", "")
    assert launcher.prune_worktrees() == [place]


def test_worktrees_of_ended_experiments_are_removed(slurm: FakeSlurm, git: GitManager, tmp_path: Path) -> None:
    launcher = SLURMLauncher(output_dir=tmp_path / "out", git_manager=git)
    places = []
    for number in range(4):
        (git.root / "train.py").write_text(f"{number}\n")
        git.commit_changes(str(number), add_all=True)
        launcher.submit_experiment(experiment(f"e{number}"))
        places.append(worktree(launcher, f"e{number}"))
        if number in (0, 2):
            (launcher.output_dir / f"e{number}" / "exit_code").write_text(f"{number}\n")
    assert [place.exists() for place in places] == [False, True, False, True], "e1 and e3 may still run"
    assert not slurm.calls("squeue"), "known without a question to Slurm"
