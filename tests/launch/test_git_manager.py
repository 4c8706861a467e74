"""Git operations lose and move no uncommitted work, and come back after an exception."""

from __future__ import annotations

import logging
import subprocess
from pathlib import Path

import pytest

from model_training_framework.slurm import GitManager, GitOperationError


def git(folder: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def fail(unfinished: Path | None = None) -> None:
    """Fail, with work in a file that is not committed yet."""
    if unfinished:
        unfinished.write_text("unfinished\n")
    raise RuntimeError("boom")


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GitManager:
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    folder = tmp_path / "project"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    git(folder, "config", "user.name", "A")
    git(folder, "config", "user.email", "a@example.org")
    (folder / "train.py").write_text("one\n")
    (folder / "other.py").write_text("one\n")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "first")
    return GitManager(folder)


def test_branch_context_returns(manager: GitManager) -> None:
    with manager.branch_context("experiment"):
        assert manager.current_branch() == "experiment"
        (manager.root / "train.py").write_text("two\n")
        manager.commit_changes("two", add_all=True)
    assert manager.current_branch() == "main"
    assert (manager.root / "train.py").read_text() == "one\n"
    assert git(manager.root, "show", "experiment:train.py") == "two"


@pytest.mark.parametrize("is_detached", [False, True])
def test_branch_context_returns_after_an_exception(manager: GitManager, is_detached: bool) -> None:
    commit = manager.current_commit()
    if is_detached:
        git(manager.root, "switch", "--detach", "-q", commit)
    with pytest.raises(RuntimeError, match="boom"), manager.branch_context("experiment"):
        fail()
    assert manager.current_branch() == (None if is_detached else "main")
    assert manager.current_commit() == commit


def test_branch_context_keeps_what_it_leaves_uncommitted(manager: GitManager, caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.WARNING),
        pytest.raises(RuntimeError, match="boom"),
        manager.branch_context("experiment"),
    ):
        fail(manager.root / "train.py")
    assert (manager.root / "train.py").read_text() == "one\n"
    assert "unfinished" in git(manager.root, "stash", "show", "-p")
    assert "left uncommitted on experiment" in git(manager.root, "stash", "list")
    assert "train.py" in caplog.text


def test_untracked_file_in_the_way_of_the_way_back(manager: GitManager) -> None:
    git(manager.root, "branch", "experiment")
    (manager.root / "new.py").write_text("committed on main\n")
    manager.commit_changes("new", files=["new.py"])
    with manager.branch_context("experiment"):
        (manager.root / "new.py").write_text("made on experiment\n")
    assert manager.current_branch() == "main"
    assert (manager.root / "new.py").read_text() == "committed on main\n"
    assert "made on experiment" in git(manager.root, "stash", "show", "-p", "--include-untracked")


@pytest.mark.parametrize("is_staged", [False, True])
def test_dirty_tree_is_refused_and_untouched(manager: GitManager, is_staged: bool) -> None:
    (manager.root / "train.py").write_text("my work\n")
    if is_staged:
        git(manager.root, "add", "train.py")
    before = git(manager.root, "status", "--porcelain")
    with (
        pytest.raises(GitOperationError, match=r"uncommitted changes \(train.py\).*commit or stash"),
        manager.branch_context("experiment"),
    ):
        pytest.fail("entered")
    assert (manager.root / "train.py").read_text() == "my work\n"
    assert git(manager.root, "status", "--porcelain") == before
    with manager.branch_context("main"):
        assert (manager.root / "train.py").read_text() == "my work\n", "the branch that is checked out moves nothing"


def test_untracked_files_stay(manager: GitManager) -> None:
    (manager.root / "notes.txt").write_text("mine\n")
    with manager.branch_context("experiment"):
        assert (manager.root / "notes.txt").exists()
    assert (manager.root / "notes.txt").read_text() == "mine\n"


def test_branch_that_does_not_exist(manager: GitManager) -> None:
    with (
        pytest.raises(GitOperationError, match="branch nowhere does not exist"),
        manager.branch_context("nowhere", create_if_not_exists=False),
    ):
        pytest.fail("entered")


def test_create_branch(manager: GitManager) -> None:
    first = manager.current_commit()
    (manager.root / "train.py").write_text("two\n")
    manager.commit_changes("two", files=["train.py"])
    assert manager.create_branch("old", first)
    assert git(manager.root, "rev-parse", "old") == first
    assert not manager.create_branch("old"), "it is there already"
    assert git(manager.root, "rev-parse", "old") == first
    assert manager.current_branch() == "main"
    for name, base in (("a b", None), ("..", None), ("new", "nowhere"), ("-f", None)):
        with pytest.raises(GitOperationError, match=r"git branch in .*fatal: [^\n]*$"):
            manager.create_branch(name, base)


def test_commit_only_the_files_named(manager: GitManager) -> None:
    (manager.root / "train.py").write_text("two\n")
    (manager.root / "other.py").write_text("staged\n")
    git(manager.root, "add", "other.py")
    commit = manager.commit_changes("two", files=["train.py"])
    assert git(manager.root, "show", "--name-only", "--format=", commit) == "train.py"
    assert git(manager.root, "diff", "--cached", "--name-only") == "other.py", "it stays staged"
    assert manager.commit_changes("other") == manager.current_commit() != commit
    assert manager.commit_changes("nothing left", add_all=True) == manager.current_commit()


def test_commit_refused(manager: GitManager) -> None:
    with pytest.raises(GitOperationError, match="did not match any files"):
        manager.commit_changes("x", files=["nowhere.py"])
    with pytest.raises(GitOperationError, match="give one of them"):
        manager.commit_changes("x", files=["train.py"], add_all=True)
    hook = manager.root / ".git" / "hooks" / "pre-commit"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\necho no tests >&2\necho at all >&2\nexit 1\n")
    hook.chmod(0o755)
    (manager.root / "train.py").write_text("two\n")
    with pytest.raises(GitOperationError, match="no tests at all"):
        manager.commit_changes("x", add_all=True)
    assert (manager.root / "train.py").read_text() == "two\n"


def test_worktree_is_shared_and_untouched_by_edits(manager: GitManager, tmp_path: Path) -> None:
    commit, folder = manager.current_commit(), tmp_path / "worktrees"
    place = manager.worktree(commit, folder)
    (manager.root / "train.py").write_text("edited\n")
    assert (place / "train.py").read_text() == "one\n"
    assert manager.worktree("HEAD", folder) == place == manager.worktree_place(commit, folder)
    assert manager.current_branch() == "main"
    (place / "train.py").write_text("edited in the worktree\n")
    fresh = manager.worktree(commit, folder)
    assert fresh != place
    assert (fresh / "train.py").read_text() == "one\n"
    assert manager.prune(folder, keep=[fresh]) == []
    assert (place / "train.py").read_text() == "edited in the worktree\n", "work in it is not lost"
    assert manager.prune(folder) == [fresh]


def test_worktree_of_a_project_below_the_repository(manager: GitManager, tmp_path: Path) -> None:
    (manager.root / "part").mkdir()
    (manager.root / "part" / "train.py").write_text("part\n")
    manager.commit_changes("part", add_all=True)
    below = GitManager(manager.root / "part")
    place = below.worktree("HEAD", tmp_path / "worktrees")
    assert (place / "train.py").read_text() == "part\n"
    assert below.changed_files() == []
    (place.parent / "other.py").write_text("edited\n")
    assert below.prune(tmp_path / "worktrees") == []


def test_worktree_has_its_submodules(manager: GitManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = tmp_path / "library"
    library.mkdir()
    git(library, "init", "-q", "-b", "main")
    (library / "kernel.py").write_text("kernel\n")
    git(library, "add", ".")
    git(library, "-c", "user.name=A", "-c", "user.email=a@example.org", "commit", "-q", "-m", "library")
    config = tmp_path / "gitconfig"
    config.write_text('[protocol "file"]\n\tallow = always\n')  # git refuses submodules from folders otherwise
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(config))
    git(manager.root, "submodule", "--quiet", "add", str(library), "library")
    manager.commit_changes("submodule", add_all=True)
    place = manager.worktree("HEAD", tmp_path / "worktrees")
    assert (place / "library" / "kernel.py").read_text() == "kernel\n"
    git(place, "submodule", "--quiet", "deinit", "--all")  # as after a call that was cut off
    assert manager.worktree("HEAD", tmp_path / "worktrees") == place
    assert (place / "library" / "kernel.py").exists()
    assert manager.prune(tmp_path / "worktrees") == [place]


def test_half_made_worktree_is_not_used(manager: GitManager, tmp_path: Path) -> None:
    commit = manager.current_commit()
    half = tmp_path / "worktrees" / commit[:12]
    half.mkdir(parents=True)
    (half / "train.py").write_text("half\n")
    place = manager.worktree(commit, tmp_path / "worktrees")
    assert place != half
    assert (half / "train.py").exists()
    with pytest.raises(GitOperationError, match="git rev-parse"):
        manager.worktree("nowhere", tmp_path / "worktrees")


def test_require_clean(manager: GitManager, caplog: pytest.LogCaptureFixture) -> None:
    assert manager.require_clean() == manager.current_commit()
    for number in range(8):
        (manager.root / f"file{number}.txt").write_text("1")
    manager.commit_changes("files", add_all=True)
    for number in range(8):
        (manager.root / f"file{number}.txt").write_text("2")
    (manager.root / "new.py").write_text("new")
    with pytest.raises(GitOperationError, match=r"file0.txt, .* and 3 more; commit them, or .*allow_dirty=True"):
        manager.require_clean()
    with caplog.at_level(logging.WARNING):
        assert manager.require_clean(allow_dirty=True) == manager.current_commit()
    assert "without uncommitted changes of file0.txt" in caplog.text
    assert "without the untracked files new.py" in caplog.text


def test_renamed_and_odd_names(manager: GitManager) -> None:
    git(manager.root, "mv", "train.py", "ünïcode name.py")
    (manager.root / "other.py").write_text("two\n")
    assert sorted(manager.changed_files()) == ["other.py", "ünïcode name.py"]


def test_no_repository(tmp_path: Path) -> None:
    with pytest.raises(GitOperationError, match="not a git repository"):
        GitManager(tmp_path)
    with pytest.raises(GitOperationError, match="no such folder"):
        GitManager(tmp_path / "nowhere")
