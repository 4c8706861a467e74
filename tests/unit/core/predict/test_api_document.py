"""Every block of docs/python-api.md, and of the documents of others that show the same calls, runs as written."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.examples import EXAMPLE

ROOT = Path(__file__).resolve().parents[4]
DOCUMENTS = [ROOT / "docs" / "python-api.md", ROOT.parent / "shared" / "spec" / "estimate-train-time-api.md"]


def blocks() -> list[tuple[str, str]]:
    """Return the Python blocks that stand on their own: those that import what they show."""
    found = []
    for document in DOCUMENTS:
        if document.is_file():
            code = re.findall(r"```python\n(.*?)```", document.read_text(encoding="utf-8"), re.DOTALL)
            own = [block for block in code if "import" in block]
            found += [(f"{document.stem}-{i}", block) for i, block in enumerate(own)]
    return found


@pytest.mark.parametrize("block", [code for _, code in blocks()], ids=[name for name, _ in blocks()])
def test_block_runs_as_written(block: str, tmp_path: Path) -> None:
    """Run it in a folder that has the files it expects and nothing else."""
    for name in ("config.yml", "path/to/config.yml", "llama_7b_config.yml", "configs/a.yml", "configs/b.yml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(EXAMPLE, tmp_path / name)
    shutil.copy(ROOT / "tests" / "data" / "readers" / "hugectr" / "dlrm.json", tmp_path / "dlrm.json")
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", block],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Error" not in done.stdout
    if "results.csv" in block:
        rows = (tmp_path / "results.csv").read_text(encoding="utf-8").splitlines()
        assert rows[0] == "config,time_us,time_s"
        assert len(rows) == 3
    else:
        assert done.stdout or "print" not in block


def test_our_document_has_every_usage() -> None:
    assert sum(name.startswith("python-api") for name, _ in blocks()) == 13
