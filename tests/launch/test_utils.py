"""Utilities: logging that does not double, folders, and results as values."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from model_training_framework.utils import (
    Error,
    Result,
    Success,
    ensure_directory_exists,
    get_logger,
    get_project_root,
    setup_logging,
    validate_project_structure,
)

ROOT = Path(__file__).resolve().parents[2]
LIGHT = ("model_training_framework", "model_training_framework.config", "model_training_framework.utils")


@pytest.fixture(autouse=True)
def _restored_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    for handler in [handler for handler in root.handlers if handler not in handlers]:
        root.removeHandler(handler)
        handler.close()
    root.setLevel(level)


def test_logging_goes_to_stderr_and_to_a_file_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "new" / "training.log"
    for _ in range(2):
        setup_logging(level="info", log_file=path)
    logger = get_logger("my.module")
    logger.info("größer")
    logger.debug("hidden")
    lines = path.read_text(encoding="utf-8").splitlines()
    assert len(lines) == 1
    assert lines[0].endswith("INFO my.module: größer")
    output = capsys.readouterr()
    assert output.err.count("größer") == 1
    assert output.out == ""


def test_setting_up_again_changes_level_and_file_and_keeps_handlers_of_others(tmp_path: Path) -> None:
    foreign = logging.NullHandler()
    logging.getLogger().addHandler(foreign)
    setup_logging("DEBUG", tmp_path / "first.log")
    root = setup_logging("WARNING", tmp_path / "second.log")
    get_logger("x").warning("said")
    assert foreign in root.handlers
    assert (tmp_path / "first.log").read_text() == ""
    assert "said" in (tmp_path / "second.log").read_text()


def test_an_unknown_level_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"level is 'LOUD'; expected DEBUG, INFO, WARNING, ERROR or CRITICAL"):
        setup_logging("LOUD")


def test_the_project_root_is_the_nearest_folder_with_a_marker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = tmp_path / "project" / "a" / "b"
    inner.mkdir(parents=True)
    (tmp_path / "project" / "pyproject.toml").touch()
    assert get_project_root(inner) == tmp_path / "project"
    monkeypatch.chdir(inner)
    assert get_project_root() == tmp_path / "project"


def test_a_project_is_valid_where_nothing_is_in_the_way(tmp_path: Path) -> None:
    assert validate_project_structure(tmp_path)
    assert validate_project_structure(str(tmp_path)).problems == ()
    missing = validate_project_structure(tmp_path, required=["train.py"])
    assert not missing
    assert missing.problems == (f"{tmp_path / 'train.py'} is missing; it is required",)
    (tmp_path / "configs").touch()
    assert "configs is a file" in validate_project_structure(tmp_path).problems[0]
    assert "does not exist" in validate_project_structure(tmp_path / "none").problems[0]
    assert "is a file" in validate_project_structure(tmp_path / "configs").problems[0]


def test_a_folder_is_made_once_and_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    assert ensure_directory_exists(folder) == ensure_directory_exists(str(folder)) == folder
    assert folder.is_dir()
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(NotADirectoryError, match=r"cannot be made: .*/file is a file$"):
            ensure_directory_exists(path)


@pytest.mark.parametrize("success", [True, False])
def test_the_result_pattern_of_the_specification(success: bool) -> None:
    def some_operation() -> Result[str, str]:
        if success:
            return Success("operation completed")
        return Error("operation failed")

    result = some_operation()
    text = result.value if isinstance(result, Success) else f"Error: {result.error}"
    assert text == ("operation completed" if success else "Error: operation failed")


def test_configuration_and_utilities_import_no_engine() -> None:
    script = f"import sys, {', '.join(LIGHT)}; print(*({{'torch', 'numpy', 'lightning_fabric'}} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env={"PYTHONPATH": ".:slurm"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == ""
