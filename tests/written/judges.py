"""Frameworks' own parsers and validators, each in a folder of its own (``make judges``), asked in another process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = Path(os.environ.get("JUDGES", ROOT / ".venv" / "judges"))


def verdicts(package: str, program: str, cases: list[dict[str, Any]], tmp_path: Path) -> list[str | None]:
    """Return what a framework refuses of each case, None where it takes it.

    Args:
        package: name and version, the name of its folder.
        program: that asks it, beside this file.
        cases: as the program takes them.
        tmp_path: a folder for both files.
    """
    folder = FOLDER / package
    if not folder.is_dir():
        pytest.skip(f"{package} is not in {FOLDER}: make judges")
    if find_spec("torch") is None:
        pytest.skip(f"{package} needs torch, which this environment has not")
    given, found = tmp_path / f"{package}.cases.json", tmp_path / f"{package}.verdicts.json"
    given.write_text(json.dumps(cases), encoding="utf-8")
    command = [sys.executable, str(Path(__file__).with_name(program)), str(given), str(found)]
    environment = {
        **os.environ,
        "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}",
        "OMP_NUM_THREADS": "1",
        "DS_ACCELERATOR": "cpu",
    }
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert found.is_file(), ran.stderr[-2000:]
    answers: list[str | None] = json.loads(found.read_text(encoding="utf-8"))
    assert len(answers) == len(cases)
    return answers


def accepted(cases: list[str], answers: list[str | None]) -> None:
    """Fail where a case was refused, naming each."""
    refused = [f"{case}: {answer}" for case, answer in zip(cases, answers, strict=True) if answer is not None]
    assert not refused, "\n".join([f"{len(refused)} of {len(cases)} refused", *refused[:10]])
