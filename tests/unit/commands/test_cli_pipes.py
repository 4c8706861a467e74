"""Configurations that come from a pipe."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.commands.test_cli import in_shell, needs_bash
from tests.unit.examples import EXAMPLE, full_form, write


@needs_bash
@pytest.mark.parametrize(
    "command",
    ["predict <(cat {})", "cat {} | predict /dev/stdin", "predict /dev/stdin < {}", "predict --config <(cat {})"],
)
def test_configuration_from_a_pipe(command: str, root: Path) -> None:
    code, out, errors = in_shell(command.format(EXAMPLE), root)
    assert (code, errors) == (0, "")
    assert out == in_shell(f"predict {EXAMPLE}", root)[1]


@needs_bash
def test_folders_in_a_pipe_are_relative_to_the_current_folder(root: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").symlink_to(root / "regressors" / "Vista")
    write(full_form(system="mine"), tmp_path / "config.yml")
    program = f"PYTHONPATH={root} {sys.executable} -m predictor <(cat config.yml)"
    done = subprocess.run(["bash", "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Vista" in done.stdout


@needs_bash
def test_named_pipe_and_nothing(root: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    assert in_shell(f"mkfifo {pipe}; cat {EXAMPLE} > {pipe} & predict {pipe}", root)[0] == 0
    code, out, errors = in_shell("predict /dev/null", root)
    assert (code, out) == (2, "")
    assert "/dev/null is empty" in errors
