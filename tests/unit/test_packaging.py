"""What `pip install` puts on a machine, each file once, and beside which releases of other packages."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path
from zipfile import ZipFile

import pytest
import yaml
from packaging.requirements import Requirement

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


def requirements(root: Path) -> dict[str, list[Requirement]]:
    """Return the requirements of the project, under "", and of each extra."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    every = {"": project["dependencies"], **project["optional-dependencies"]}
    return {extra: [Requirement(text) for text in texts] for extra, texts in every.items()}


def test_every_requirement_has_both_bounds_and_the_same_everywhere(root: Path) -> None:
    bounds: dict[str, str] = {}
    for need in [need for needs in requirements(root).values() for need in needs]:
        assert {spec.operator for spec in need.specifier} == {">=", "<"}, (
            f"{need} may be older or newer than what was tried"
        )
        assert bounds.setdefault(need.name, str(need.specifier)) == str(need.specifier)


@pytest.mark.parametrize(
    "name", ["profiling/environment.yaml", "training/environment.yaml", "training/verify.environment.yaml"]
)
def test_conda_environments_have_the_bounds_of_the_extras(name: str, root: Path) -> None:
    bounds = {need.name: need.specifier for needs in requirements(root).values() for need in needs}
    listed = yaml.safe_load((root / name).read_text(encoding="utf-8"))["dependencies"]
    texts = [text for entry in listed for text in (entry["pip"] if isinstance(entry, dict) else [entry])]
    needs = [Requirement(text.replace("pytorch", "torch")) for text in texts]
    for need in [need for need in needs if need.name not in {"python", "pip", "mpich"}]:
        assert need.specifier == bounds[need.name], need


def test_every_target_installs_with_the_constraints_which_the_extras_allow(root: Path) -> None:
    lines = [line for line in (root / "Makefile").read_text(encoding="utf-8").splitlines() if "pip install" in line]
    assert lines
    assert all("--constraint constraints.txt" in line for line in lines)
    held = dict(re.findall(r"^(\S+)==(\S+)$", (root / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE))
    assert held
    for need in [need for needs in requirements(root).values() for need in needs if need.name in held]:
        assert need.specifier.contains(held[need.name])
    assert "PIP_" not in (root / ".ci" / "run").read_text(encoding="utf-8"), "a user's pip has no such setting"
