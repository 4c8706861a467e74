"""What `pip install` puts on a machine: six packages, the examples and the published systems, each once."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path
from zipfile import ZipFile

import pytest

INSTALLED = {
    "predictor", "estimate_train_time", "fitting", "microbench", "hugectr", "llm_trainer", "model_training_framework",
}  # fmt: skip
DATA = "estimate_train_time/data"


def build(target: str, source: Path, folder: Path) -> Path:
    """Build an sdist or a wheel of ``source`` into ``folder``."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(folder)]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return next(folder.glob("*.whl" if target == "wheel" else "*.tar.gz"))


@pytest.fixture(scope="module", params=["checkout", "sdist"])
def wheel(request: pytest.FixtureRequest, root: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return the names in a wheel built from the checkout, or from an sdist of it."""
    folder = tmp_path_factory.mktemp("dist")
    source = root
    if request.param == "sdist":
        with tarfile.open(build("sdist", root, folder)) as archive:
            archive.extractall(folder, filter="data")
        source = next(path for path in folder.iterdir() if path.is_dir())
    with ZipFile(build("wheel", source, folder)) as wheel_archive:
        return wheel_archive.namelist()


def test_wheel_installs_only_our_packages(wheel: list[str]) -> None:
    top = {name.partition("/")[0] for name in wheel if ".dist-info/" not in name}
    assert top <= INSTALLED, f"the wheel would install {', '.join(sorted(top - INSTALLED))}"
    assert len(set(wheel)) == len(wheel), "a file is in the wheel twice"


def test_wheel_carries_every_published_file(wheel: list[str], root: Path) -> None:
    files = [path for path in (root / "regressors").rglob("*") if path.is_file()]
    assert files, "regressors/ holds no published system; make fit publishes them"
    missing = {f"{DATA}/{path.relative_to(root).as_posix()}" for path in files} - set(wheel)
    assert not missing, "published, but not in the wheel:\n" + "\n".join(sorted(missing))


def test_wheel_carries_every_example(wheel: list[str], root: Path) -> None:
    examples = {path.relative_to(root).as_posix() for path in (root / DATA / "examples").glob("*.yml")}
    assert examples
    assert examples <= set(wheel)


def test_wheel_carries_the_job_script(wheel: list[str]) -> None:
    assert "model_training_framework/slurm/default.sbatch" in wheel
