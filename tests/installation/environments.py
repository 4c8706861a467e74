"""Environments with one extra each, of the newest releases that pyproject.toml allows or of the lowest.

They are kept in .venv/extras, each as long as its requirements stay what they are. Torch, of which one series is
allowed, is installed once, and an extra that asks for it finds it through a .pth file.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import tomllib
from collections import defaultdict
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
EXTRAS = ROOT / ".venv" / "extras"
ENGINE = ROOT / "training" / "hugectr" / "engine-cpu.txt"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
NO_EXTRA = "none"
# flash-attn is compiled for a GPU, with CUDA's compiler: nothing to install on a machine without either.
NEEDS_CUDA = {"flash-attn"}
TORCH = threading.Lock()
LOCKS: defaultdict[Path, threading.Lock] = defaultdict(threading.Lock)


def requirements(extra: str) -> list[Requirement]:
    """Return the direct requirements of the project with one extra."""
    own = PROJECT["optional-dependencies"][extra] if extra != NO_EXTRA else []
    found = [Requirement(text) for text in (*PROJECT["dependencies"], *own)]
    return [need for need in found if need.name not in NEEDS_CUDA and (not need.marker or need.marker.evaluate())]


def lowest(needs: Iterable[Requirement]) -> list[str]:
    """Return constraints that hold every requirement at its lower bound.

    >>> lowest([Requirement("numpy>=1.26,<3")])
    ['numpy==1.26']
    """
    return [f"{need.name}=={spec.version}" for need in needs for spec in need.specifier if spec.operator == ">="]


def pip(python: Path, *words: str) -> None:
    """Install into an environment with the pip of this one; fail with what pip said."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(python),
        "--disable-pip-version-check",
        "install",
        "--quiet",
        "--no-compile",
    ]
    done = subprocess.run([*command, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"pip install {' '.join(words)}\n{done.stderr[-4000:]}"


def made(folder: Path, recipe: list[str]) -> tuple[Path, bool]:
    """Return the interpreter of an environment, and whether it has to be filled, being new or of another recipe."""
    python = folder / "bin" / "python"
    if is_current(folder, recipe):
        return python, False
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    return python, True


def key(recipe: list[str]) -> str:
    """Return the checksum of a recipe, of this Python and of this checkout's place."""
    return sha256("\n".join([sys.version, str(ROOT), *recipe]).encode()).hexdigest()


def is_current(folder: Path, recipe: list[str]) -> bool:
    """Return whether an environment was completed with this recipe."""
    stamp = folder / "made-of"
    return stamp.is_file() and stamp.read_text(encoding="ascii") == key(recipe)


def complete(folder: Path, recipe: list[str]) -> None:
    """Record that an environment is complete."""
    (folder / "made-of").write_text(key(recipe), encoding="ascii")


def packages(python: Path) -> Path:
    """Return the folder of an environment's packages."""
    return next((python.parents[1] / "lib").glob("python*")) / "site-packages"


def torch_packages(need: Requirement) -> Path:
    """Return the packages of an environment with torch alone."""
    folder, recipe = EXTRAS / "torch", [str(need)]
    with TORCH:
        python, is_new = made(folder, recipe)
        if is_new:
            pip(python, str(need))
            complete(folder, recipe)
    return packages(python)


def project_wheel(folder: Path) -> Path:
    """Return a wheel that installs this checkout, editable."""
    program = "import sys, hatchling.build; print(hatchling.build.build_editable(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", program, str(folder)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return folder / done.stdout.split()[-1]


def environment(extra: str, releases: str, wheel: Path) -> Path:
    """Return the interpreter of an environment with one extra; install what is not there already.

    Extras that ask for the same packages share it.

    Args:
        extra: of pyproject.toml, or ``none``.
        releases: newest or lowest, of those that pyproject.toml allows.
        wheel: of the project.
    """
    needs = requirements(extra)
    first = next(name for name in (NO_EXTRA, *PROJECT["optional-dependencies"]) if requirements(name) == needs)
    folder = EXTRAS / f"{first}-{releases}"
    with LOCKS[folder]:
        return _filled(folder, first, needs, releases, wheel)


def _filled(folder: Path, extra: str, needs: list[Requirement], releases: str, wheel: Path) -> Path:
    engine = ENGINE.read_text(encoding="utf-8") if extra == "recommend" else ""
    recipe = [*map(str, needs), engine]
    python, is_new = made(folder, recipe)
    if not is_new:
        return python
    for need in needs:
        if need.name == "torch":
            (packages(python) / "torch.pth").write_text(f"{torch_packages(need)}\n", encoding="utf-8")
    held = folder / "constraints.txt"
    held.write_text("\n".join(lowest(needs) if releases == "lowest" else []), encoding="utf-8")
    with_extra = [str(wheel)] if extra == NO_EXTRA else [f"{wheel}[{extra}]"]
    pip(python, "--constraint", str(held), *([str(wheel), *map(str, needs)] if extra == "gpu" else with_extra))
    if engine:
        pip(python, "--no-deps", "--requirement", str(ENGINE))
    complete(folder, recipe)
    return python
