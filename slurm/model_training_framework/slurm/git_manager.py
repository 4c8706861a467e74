"""Git operations for experiments: branches without risk to uncommitted work, and worktrees at a recorded commit."""

from __future__ import annotations

import logging
import os
import subprocess
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from model_training_framework.slurm.errors import GitOperationError

logger = logging.getLogger(__name__)

FEW = 5  # files that a message names
ABBREVIATED = 12  # digits of a commit in a folder's name


class GitManager:
    """Git operations on one repository.

    A worktree is a second checkout of the same repository. Experiments run from a detached worktree at a recorded
    commit, so that editing the checkout does not change jobs that wait in the queue.
    """

    def __init__(self, repo_path: str | Path) -> None:
        """Find the repository.

        Args:
            repo_path: its folder, or one inside it, in which jobs are to run.

        Raises:
            GitOperationError: it is not inside a git repository, or git is not installed.
        """
        self.repo_path = Path(repo_path).resolve()
        if not self.repo_path.is_dir():
            raise GitOperationError(f"repo_path is {self.repo_path}: no such folder")
        self.root = Path(self._git("rev-parse", "--show-toplevel").strip())

    def current_commit(self) -> str:
        """Return the id of the commit that is checked out.

        Raises:
            GitOperationError: the repository has no commit yet.
        """
        return self._git("rev-parse", "--verify", "HEAD^{commit}").strip()

    def current_branch(self) -> str | None:
        """Return the branch that is checked out; None where HEAD is detached."""
        return self._git("symbolic-ref", "--quiet", "--short", "HEAD", accept=(0, 1)).strip() or None

    def changed_files(self) -> list[str]:
        """Return the tracked files that differ from the commit that is checked out, staged or not."""
        return _paths(self._git("status", "--porcelain=v1", "-z", "--untracked-files=no", folder=self.root))

    def untracked_files(self) -> list[str]:
        """Return the files that git neither tracks nor ignores."""
        text = self._git("ls-files", "--others", "--exclude-standard", "-z", folder=self.root)
        return [path for path in text.split("\0") if path]

    def create_branch(self, branch_name: str, base_branch: str | None = None) -> bool:
        """Create a branch without checking it out.

        Args:
            branch_name: name of the new branch.
            base_branch: branch or commit where it starts; the commit that is checked out if absent.

        Returns:
            Whether it was created; False where a branch of this name is there already, which is left as it is.

        Raises:
            GitOperationError: the name is not valid, or the base does not exist.
        """
        if self._has_branch(branch_name):
            return False
        self._git("branch", "--no-track", "--", branch_name, *([base_branch] if base_branch else []))
        return True

    def commit_changes(self, message: str, files: list[str] | None = None, add_all: bool = False) -> str:
        """Commit to the current branch.

        Args:
            message: of the commit.
            files: commit these, relative to ``repo_path``; what else is staged stays staged. If absent, what is staged.
            add_all: commit every change and every new file that is not ignored.

        Returns:
            The id of the new commit, or of the current one where there was nothing to commit: either way of the
            commit that holds the state asked for.

        Raises:
            GitOperationError: git refused: both arguments are given, a file is unknown, a hook failed, no author is
                configured.
        """
        if files and add_all:
            raise GitOperationError("files and add_all are both given; give one of them")
        only: tuple[str, ...] = ()
        if add_all:
            self._git("add", "--all", folder=self.root)
        elif files:
            only = ("--", *files)
            self._git("add", *only)
        if not self._git("diff", "--cached", "--name-only", *only).strip():
            return self.current_commit()
        self._git("commit", "--quiet", "--message", message, *only)
        return self.current_commit()

    @contextmanager
    def branch_context(self, branch_name: str, create_if_not_exists: bool = True) -> Iterator[None]:
        """Check out a branch, and what was checked out before at the end, after an exception too.

        Uncommitted changes of tracked files would move to the other branch, so entering is refused while there are
        any. What the context leaves uncommitted is put into git's stash, and a warning says so. Untracked files stay.

        Raises:
            GitOperationError: the tree has uncommitted changes, the branch does not exist, or git refused.
        """
        before, commit = self.current_branch(), self.current_commit()
        if before == branch_name:
            yield
            return
        changed = self.changed_files()
        if changed:
            raise GitOperationError(
                f"{self.root} has uncommitted changes ({_few(changed)}), which switching to {branch_name} would move; "
                "commit or stash them, or use worktree()"
            )
        if not self._has_branch(branch_name):
            if not create_if_not_exists:
                raise GitOperationError(f"branch {branch_name} does not exist; pass create_if_not_exists=True")
            self.create_branch(branch_name)
        self._git("switch", "--quiet", "--no-guess", branch_name)
        try:
            yield
        finally:
            self._restore(before, commit, branch_name)

    def _restore(self, before: str | None, commit: str, branch_name: str) -> None:
        """Go back to a branch or a detached commit; stash what is uncommitted, and new files if they are in the way."""
        back = ("switch", "--quiet", "--no-guess", before) if before else ("switch", "--quiet", "--detach", commit)
        if self.changed_files():
            self._stash(branch_name)
        try:
            self._git(*back)
        except GitOperationError:
            if not self.untracked_files():
                raise
            self._stash(branch_name, "--include-untracked")
            self._git(*back)

    def _stash(self, branch_name: str, *options: str) -> None:
        files = self.changed_files() or self.untracked_files()
        self._git("stash", "push", "--quiet", *options, "--message", f"left uncommitted on {branch_name}")
        logger.warning(
            "%s: uncommitted changes of %s (%s) are in git's stash: git stash show -p",
            self.root,
            branch_name,
            _few(files),
        )

    def require_clean(self, allow_dirty: bool = False) -> str:
        """Return the commit that jobs are to run; refuse to leave uncommitted changes out of them.

        Args:
            allow_dirty: run the commit without the changes, and warn.

        Raises:
            GitOperationError: tracked files have changes that are not committed.
        """
        commit, changed = self.current_commit(), self.changed_files()
        left_out = f"jobs run commit {commit[:ABBREVIATED]}, without uncommitted changes of {_few(changed)}"
        if changed and not allow_dirty:
            raise GitOperationError(f"{left_out}; commit them, or allow that with allow_dirty=True (--allow-dirty)")
        if changed:
            logger.warning("%s", left_out)
        new = [path for path in self.untracked_files() if path.endswith((".py", ".sh", ".yaml", ".yml"))]
        if new:
            logger.warning("jobs run commit %s, without the untracked files %s", commit[:ABBREVIATED], _few(new))
        return commit

    def worktree(self, commit: str, folder: str | Path) -> Path:
        """Return a detached worktree at a commit, with its submodules; experiments of the same commit share it.

        A worktree in which somebody edited tracked files is left alone, and a fresh one is made beside it.

        Args:
            commit: id, tag or branch; resolved to the commit that it is now.
            folder: folder of all worktrees.

        Returns:
            The folder that corresponds to ``repo_path``, inside the worktree.

        Raises:
            GitOperationError: there is no such commit, or git refused.
        """
        full = self._git("rev-parse", "--verify", f"{commit}^{{commit}}").strip()
        parent = Path(folder).resolve()
        parent.mkdir(parents=True, exist_ok=True)
        self._git("worktree", "prune")
        number = 1
        while True:
            place = parent / (full[:ABBREVIATED] + (f"-{number}" if number > 1 else ""))
            if not place.exists():
                self._add_worktree(full, place)
            if self._is_at(place, full):
                if (place / ".gitmodules").is_file():  # also after a call that was cut off between the two
                    self._git("submodule", "update", "--init", "--recursive", "--quiet", folder=place)
                return place / self.repo_path.relative_to(self.root)
            number += 1

    def worktree_place(self, commit: str, folder: str | Path) -> Path:
        """Return where :meth:`worktree` would put a commit, as long as nobody has edited files there."""
        return Path(folder).resolve() / commit[:ABBREVIATED] / self.repo_path.relative_to(self.root)

    def _add_worktree(self, commit: str, place: Path) -> None:
        """Make a worktree elsewhere and move it into place, so that a half-made one is never used."""
        building = place.with_name(f".{place.name}.{os.getpid()}")
        if building.exists():
            self._git("worktree", "remove", "--force", str(building))
        self._git("worktree", "add", "--quiet", "--detach", str(building), commit)
        self._git("worktree", "move", str(building), str(place))

    def _is_at(self, place: Path, commit: str) -> bool:
        """Return whether a folder is a worktree of this repository, at a commit and unedited."""
        if not (place / ".git").is_file():
            return False
        head = self._git("rev-parse", "HEAD", folder=place).strip()
        return head == commit and not self._git("status", "--porcelain", "--untracked-files=no", folder=place)

    def prune(self, folder: str | Path, keep: Collection[str | Path] = ()) -> list[Path]:
        """Remove the worktrees below a folder that nothing uses, except edited ones.

        Args:
            folder: folder of all worktrees.
            keep: worktrees, or folders inside them, that are still used.

        Returns:
            The worktrees that were removed.
        """
        parent = Path(folder).resolve()
        used = [Path(path).resolve() for path in keep]
        removed = []
        for line in self._git("worktree", "list", "--porcelain").splitlines():
            place = Path(line.removeprefix("worktree "))
            if not line.startswith("worktree ") or place.parent != parent or not place.exists():
                continue
            if any(path.is_relative_to(place) for path in used):
                continue
            if self._git("status", "--porcelain", "--untracked-files=no", folder=place):
                logger.warning("%s has uncommitted changes and is kept", place)
                continue
            self._git("worktree", "remove", "--force", str(place))
            removed.append(place)
        return removed

    def _has_branch(self, name: str) -> bool:
        return bool(self._git("rev-parse", "--verify", "--quiet", f"refs/heads/{name}", accept=(0, 1)).strip())

    def _git(self, *words: str, folder: Path | None = None, accept: tuple[int, ...] = (0,)) -> str:
        """Run git and return what it printed."""
        # Variables of a hook that we run inside would point git to another repository.
        ours = {
            key: value for key, value in os.environ.items() if key not in ("GIT_DIR", "GIT_INDEX_FILE", "GIT_WORK_TREE")
        }
        try:
            done = subprocess.run(
                ["git", *words],
                cwd=folder or self.repo_path,
                env=ours | {"LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0"},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
            )
        except OSError as error:
            raise GitOperationError(f"git {words[0]}: {error}") from error
        if done.returncode not in accept:
            said = " ".join((done.stderr.strip() or done.stdout.strip()).split()) or f"exit status {done.returncode}"
            raise GitOperationError(f"git {words[0]} in {folder or self.repo_path}: {said}")
        return done.stdout


def _paths(status: str) -> list[str]:
    """Return the paths of git status --porcelain -z; a renamed file has its old name in a field of its own."""
    fields = iter(status.split("\0"))
    found = []
    for entry in fields:
        if entry:
            found.append(entry[3:])
            if entry[0] in "RC":
                next(fields, None)
    return found


def _few(paths: list[str]) -> str:
    """Return the first paths, and how many more there are."""
    rest = len(paths) - FEW
    return ", ".join(paths[:FEW]) + (f" and {rest} more" if rest > 0 else "")
