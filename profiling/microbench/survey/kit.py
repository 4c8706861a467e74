"""Build the kit for a GPU machine with torch alone: the code, wheels of its dependencies, and earlier results."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from microbench.device import COMMIT_FILE, commit
from microbench.errors import MeasureError
from microbench.sweep import PREPARED, prepare_shapes, read_sweep

PYTHONS = ("3.11", "3.12", "3.13", "3.14")
MACHINES = ("x86_64", "aarch64")
MANYLINUX = ("_2_39", "_2_34", "_2_31", "_2_28", "_2_27", "_2_17", "2014")
# Imports of the measuring code and of its GPU tests; the GPU machine has torch.
PACKAGES = (
    "pydantic", "pydantic-core", "annotated-types", "typing-extensions", "typing-inspection", "PyYAML", "pytest",
    "pluggy", "iniconfig", "packaging", "Pygments", "nvidia-ml-py",
)  # fmt: skip
CODE = (
    "pyproject.toml", "predictor", "estimate_train_time", "profiling/microbench", "profiling/sweeps", "profiling/steps",
    "training/systems", "tests/__init__.py", "tests/conftest.py", "tests/gpu", "tests/unit",
)  # fmt: skip
ENTRANCES = ("survey/measure.py", "study/study.py")
LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.pyc", "*.json.gz")  # no traces: nothing is replayed there
SWEEP = "standard"
PRECISIONS = ("bf16", "fp16", "fp8", "fp8_block")  # that a survey may ask for
LARGEST_BYTES = 30_000_000  # what a shell copies to a login node in seconds


def _requirement(name: str) -> str:
    """Return the release of a package that this environment has, so that the same code runs there; else any."""
    try:
        return f"{name}=={version(name)}"
    except PackageNotFoundError:
        return name


def download(packages: Sequence[str], python: str, machine: str, folder: Path) -> None:
    """Fetch wheels for another Python and processor with pip.

    Raises:
        MeasureError: pip finds none.
    """
    words = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    words += ["--only-binary=:all:", "--implementation=cp", f"--python-version={python}", "--dest", str(folder)]
    words += [f"--platform=manylinux{tag}_{machine}" for tag in MANYLINUX]
    done = subprocess.run([*words, *packages], capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1]
        raise MeasureError(f"pip brought no wheels for Python {python} on {machine}: {last}")


def make_kit(
    root: Path,
    out: Path,
    pythons: Sequence[str],
    machines: Sequence[str],
    earlier: Path | None,
    say: Callable[[str], None],
) -> int:
    """Make the folder anew and return its size in bytes.

    Args:
        root: the checkout.
        out: the folder, e.g. gpu-kit.
        pythons: versions that may be there.
        machines: processors that may be there.
        earlier: results of earlier surveys, a folder per GPU.
        say: takes a line of progress.

    Raises:
        MeasureError: a folder that is no kit would be overwritten, a wheel is missing, or the kit is too large.
    """
    if out.exists() and not (out / "measure.py").is_file():
        raise MeasureError(f"{out} is there and is not a kit; name another folder")
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.resolve().parent) as scratch:
        made = Path(scratch) / out.name
        _fill(root, made, [(python, machine) for machine in machines for python in pythons], say)
        if earlier is not None and earlier.is_dir():
            shutil.copytree(earlier, made / "earlier")
        size = sum(path.stat().st_size for path in made.rglob("*") if path.is_file())
        if size > LARGEST_BYTES:
            raise MeasureError(
                f"a kit of {size / 1e6:.1f} MB, more than {LARGEST_BYTES / 1e6:.0f}: name fewer --python or --machine"
            )
        shutil.rmtree(out, ignore_errors=True)
        made.replace(out)
    return size


def _fill(root: Path, out: Path, targets: Sequence[tuple[str, str]], say: Callable[[str], None]) -> None:
    """Put code, entrance and wheels into a folder."""
    code = out / "code"
    for name in CODE:
        source, target = root / name, code / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=LEFT_OUT)
        else:
            shutil.copy(source, target)
    for entrance in ENTRANCES:
        shutil.copy(code / "profiling/microbench" / entrance, out)
    say(f"shapes of the sweep {SWEEP}")
    prepare_shapes(read_sweep(SWEEP), PRECISIONS, code / PREPARED.relative_to(root))
    (code / COMMIT_FILE.relative_to(root)).write_text(commit() + "\n", encoding="utf-8")
    wheels = [_requirement(name) for name in PACKAGES]
    for python, machine in targets:
        say(f"wheels for Python {python} on {machine}")
        download(wheels, python, machine, out / "wheels")
