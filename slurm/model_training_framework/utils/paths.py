"""Folders of a project."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

# What the root of a project has; a folder of configurations alone makes one, too.
MARKERS = (".git", "pyproject.toml", "setup.py", "setup.cfg", "configs")


def get_project_root(start: str | Path | None = None) -> Path:
    """Return the root of the project that a folder is in: the nearest folder upwards with a marker of one.

    Markers are ``.git``, ``pyproject.toml``, ``setup.py``, ``setup.cfg`` and ``configs``. Where no folder has one, the
    project is the folder itself.

    Args:
        start: a folder of the project; the current one if absent.
    """
    here = Path.cwd() if start is None else Path(start).resolve()
    for folder in (here, *here.parents):
        if any((folder / marker).exists() for marker in MARKERS):
            return folder
    return here


@dataclass(frozen=True, slots=True)
class ProjectStructure:
    """Whether a folder can be worked in as a project; it is true if so.

    Attributes:
        root: the folder.
        problems: what is in the way, a line each.
    """

    root: Path
    problems: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """Return whether nothing is in the way."""
        return not self.problems


def validate_project_structure(project_root: str | Path, required: Iterable[str] = ()) -> ProjectStructure:
    """Check that experiments can be launched from a folder.

    It must be a folder that can be written to, as experiments' folders go below it; ``configs``, where there is such
    a name, must be a folder.

    Args:
        project_root: the folder.
        required: further paths within it that must be there, such as ``train.py``.
    """
    root = Path(project_root)
    if not root.is_dir():
        found = "is a file" if root.exists() else "does not exist"
        return ProjectStructure(root, (f"{root} {found}; expected the folder of a project",))
    problems = []
    if not os.access(root, os.R_OK | os.W_OK | os.X_OK):
        problems.append(f"{root} cannot be written to; experiments' folders go below it")
    configs = root / "configs"
    if configs.exists() and not configs.is_dir():
        problems.append(f"{configs} is a file; expected a folder of configurations")
    problems += [f"{root / name} is missing; it is required" for name in required if not (root / name).exists()]
    return ProjectStructure(root, tuple(problems))


def ensure_directory_exists(path: str | Path) -> Path:
    """Return a folder, made with its parents where it was missing.

    Raises:
        NotADirectoryError: a file is in the way.
        OSError: it cannot be made.
    """
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        in_the_way = next(part for part in (folder, *folder.parents) if part.exists() and not part.is_dir())
        raise NotADirectoryError(f"{folder} cannot be made: {in_the_way} is a file") from None
    return folder
