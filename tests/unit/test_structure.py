"""The tree keeps the shape that was decided: who imports whom, what is published, what may not be here at all."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from predictor.core.costs.catalogue import catalogue

ROOT = Path(__file__).resolve().parents[2]

PACKAGES = {
    "predictor": ROOT / "predictor",
    "estimate_train_time": ROOT / "estimate_train_time",
    "fitting": ROOT / "training" / "fitting",
    "microbench": ROOT / "profiling" / "microbench",
    "model_training_framework": ROOT / "slurm" / "model_training_framework",
    "llm_trainer": ROOT / "training" / "llm_trainer",
    "hugectr": ROOT / "training" / "hugectr",
}
# What each package may import besides the standard library and itself. `predictor` is the ground floor.
RUNTIME = {"pydantic", "yaml"}
ALLOWED_IMPORTS = {
    "predictor": RUNTIME | {"omegaconf"},  # of an extra, for files whose values refer to each other
    "estimate_train_time": RUNTIME | {"predictor"},
    "fitting": RUNTIME | {"predictor", "microbench", "numpy", "pandas", "scipy", "sklearn", "threadpoolctl"},
    "microbench": RUNTIME
    | {
        "predictor",
        "torch",
        "mpi4py",
        "fbgemm_gpu",
        "flash_attn",
        "flash_attn_interface",
        "pynvml",
        "transformers",
        "triton",
    },
    "model_training_framework": RUNTIME
    | {"predictor", "torch", "lightning_fabric", "numpy", "tensorboard", "wandb"}
    | {"transformers", "lightning", "pytorch_lightning"},  # callbacks for those who have them
    "llm_trainer": RUNTIME
    | {"predictor", "model_training_framework", "torch", "lightning_fabric", "numpy"}
    | {"tokenizers", "safetensors", "pyarrow", "datasets", "sacrebleu"},
    "hugectr": RUNTIME
    | {"predictor", "model_training_framework", "torch", "torchrec", "fbgemm_gpu", "numpy", "pyarrow"},
}
FROM_THE_FRONT_DOOR = {"__version__"}
# Rooms of the launcher, and those that each may import (those of `predictor`: test_arrows.py). It submits command
# lines and imports no trainer, and nothing below its core knows a prediction.
LAUNCHER_ROOMS: dict[str, set[str]] = {
    "utils": set(),
    "config": {"utils"},
    "prediction": {"config", "utils"},
    "slurm": {"config", "utils"},
    "health": set(),
    "trainer": {"config", "health", "utils"},
    "core": {"config", "prediction", "slurm", "utils"},
    "run_health": set(),
    "commands": {"config", "core", "run_health", "slurm", "utils"},
    "__main__": {"commands", "config", "slurm", "utils"},
    "__init__": {"config", "core"},
}
NOT_IN_A_PREDICTION = ("torch", "sklearn", "scipy", "numpy", "pandas", "snakemake", "fitting", "microbench")
NOT_IMPORTABLE = ("profiling", "training", "slurm", "regressors")
CODE_EXECUTING_FORMATS = {"pickle", "cPickle", "joblib", "cloudpickle", "dill", "marshal", "shelve"}
CODE_EXECUTING_SUFFIXES = {".pkl", ".pickle", ".joblib", ".pt", ".pth", ".npy"}
PUBLISHED_SUFFIXES = {".json", ".yaml", ".md"}
PUBLISHED_MAX_BYTES = 1_000_000  # of one system
MAX_LINES = 400
SKIPPED_FOLDERS = {"__pycache__", "build", "dist", "logs", "results"}


@cache
def tree() -> tuple[Path, ...]:
    """Every file of the checkout that is neither hidden nor generated; links are not followed."""
    files: list[Path] = []
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in SKIPPED_FOLDERS]
        files += [Path(folder, name) for name in names]
    return tuple(sorted(files))


def python_files() -> list[Path]:
    return [path for path in tree() if path.suffix == ".py"]


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imported_names(path: Path) -> Iterator[tuple[str, int]]:
    """Every dotted name that a file imports anywhere, functions and type-checking blocks included, and its line."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)


def modules(package: str) -> dict[str, Path]:
    """The modules of a package by dotted name; none if the package is not written yet."""
    folder = PACKAGES[package]
    found = {}
    for path in sorted(folder.rglob("*.py")):
        parts = (package, *path.relative_to(folder).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@pytest.mark.parametrize("package", PACKAGES)
def test_package_imports_only_what_lies_below_it(package: str) -> None:
    allowed = ALLOWED_IMPORTS[package] | sys.stdlib_module_names | {package}
    strays = [
        f"{relative(path)}:{line} imports {name}"
        for path in modules(package).values()
        for name, line in imported_names(path)
        if name.partition(".")[0] not in allowed
    ]
    assert not strays, f"{package} may import {', '.join(sorted(ALLOWED_IMPORTS[package]))}:\n" + "\n".join(strays)


@pytest.mark.parametrize("package", PACKAGES)
def test_package_has_no_import_circle(package: str) -> None:
    known = modules(package)
    graph: dict[str, set[str]] = {}
    for module, path in known.items():
        names = {name for name, _ in imported_names(path)}
        # `from a.b import c` is the module a.b.c where there is one, and a.b otherwise.
        targets = {name if name in known else name.rpartition(".")[0] for name in names}
        graph[module] = (targets & known.keys()) - {module}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"modules import each other in a circle: {' ← '.join(error.args[1])}")


def room_imports(package: str) -> Iterator[tuple[str, str, str]]:
    """Every import of a package within it: the importing room or door, the imported one, and where."""
    folder = PACKAGES[package]
    for path in modules(package).values():
        room = path.relative_to(folder).with_suffix("").parts[0]
        for name, line in imported_names(path):
            imported, _, rest = name.partition(".")
            target = rest.partition(".")[0]
            if imported == package and target not in {room, *FROM_THE_FRONT_DOOR}:
                yield room, target, f"{relative(path)}:{line} imports {name}"


def test_rooms_of_the_launcher_import_only_rooms_below() -> None:
    imports = list(room_imports("model_training_framework"))
    strays = [where for room, target, where in imports if target not in LAUNCHER_ROOMS[room]]
    assert not strays, "\n".join(strays)
    assert len(imports) > 50


@pytest.mark.parametrize("package", ["llm_trainer", "hugectr"])
def test_trainer_uses_the_launcher_s_trainer_only(package: str) -> None:
    imports = [
        (name.split("."), f"{relative(path)}:{line} imports {name}")
        for path in modules(package).values()
        for name, line in imported_names(path)
        if name.startswith("model_training_framework.")
    ]
    strays = [where for parts, where in imports if parts[1] != "trainer"]
    assert not strays, "\n".join(strays)
    assert imports


def test_prediction_loads_nothing_heavy() -> None:
    script = f"import predictor.__main__, sys; print(*(set({NOT_IN_A_PREDICTION!r}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not done.stdout.strip(), (
        f"import predictor.__main__ also loads {done.stdout.strip()}: a prediction must start fast"
    )


@pytest.mark.parametrize("folder", NOT_IMPORTABLE)
def test_source_root_is_no_package(folder: str) -> None:
    assert not (ROOT / folder / "__init__.py").exists(), (
        f"{folder}/__init__.py makes {folder} an import name. These folders are source roots or data: `profiling` is a "
        "standard-library package from Python 3.15 on (PEP 799), and ours would shadow it or be shadowed"
    )


@pytest.mark.parametrize(
    "path", sorted((ROOT / "predictor/core/costs/operators").glob("[!_]*.py")), ids=lambda path: path.stem
)
def test_operator_says_what_it_is(path: Path) -> None:
    operator = catalogue()[path.stem]
    assert operator.dimensions, f"{relative(path)}: no dimension names"
    assert len(set(operator.dimensions)) == len(operator.dimensions), f"{relative(path)}: a dimension name occurs twice"
    assert operator.source.strip(), f"{relative(path)}: no source for its work formula"


def test_nothing_here_can_run_code_when_loaded() -> None:
    files = [relative(path) for path in tree() if path.suffix in CODE_EXECUTING_SUFFIXES]
    imports = [
        f"{relative(path)}:{line} imports {name}"
        for path in python_files()
        for name, line in imported_names(path)
        if name.partition(".")[0] in CODE_EXECUTING_FORMATS or name.rpartition(".")[2] == "read_pickle"
    ]
    assert not files + imports, "loading a model must not be able to run code; publish JSON:\n" + "\n".join(
        files + imports
    )


def test_no_file_holds_more_than_one_idea() -> None:
    code = [*python_files(), *(path for path in tree() if path.name in {"Snakefile", "Makefile"})]
    lengths = {relative(path): len(path.read_text(encoding="utf-8").splitlines()) for path in code}
    long = [f"{name}: {lines} lines" for name, lines in lengths.items() if lines > MAX_LINES]
    assert not long, f"over {MAX_LINES} lines; split by idea:\n" + "\n".join(long)


def published_files() -> list[Path]:
    return [path for path in tree() if path.is_relative_to(ROOT / "regressors")]


def test_published_systems_are_complete() -> None:
    paths = [path.relative_to(ROOT / "regressors") for path in published_files()]
    systems = {path.parts[0] for path in paths if len(path.parts) > 1}
    assert systems, "regressors/ holds no published system; make fit publishes them"
    missing = [
        f"regressors/{system}/{name}"
        for system in sorted(systems)
        for name in ("system.yaml", "card.md", "manifest.json")
        if not (ROOT / "regressors" / system / name).is_file()
    ]
    assert not missing, "a published system says its hardware, its errors and its checksums:\n" + "\n".join(missing)


def test_published_systems_are_small_and_hold_no_rows() -> None:
    strays = [relative(path) for path in published_files() if path.suffix not in PUBLISHED_SUFFIXES]
    assert not strays, "published systems hold fitted models and their cards, no tables:\n" + "\n".join(strays)
    sizes: dict[str, int] = {}
    for path in published_files():
        system = path.relative_to(ROOT / "regressors").parts[0]
        sizes[system] = sizes.get(system, 0) + path.stat().st_size
    large = {system: size for system, size in sizes.items() if size >= PUBLISHED_MAX_BYTES}
    assert not large, f"published systems of {PUBLISHED_MAX_BYTES:,} bytes or more: {large}"


def test_checkout_and_wheel_find_regressors_at_one_path() -> None:
    link = ROOT / "estimate_train_time" / "data" / "regressors"
    assert link.resolve() == ROOT / "regressors", (
        f"{relative(link)} must be a link to ../../regressors "
        "(on Windows: git config core.symlinks true, then check out again)"
    )
