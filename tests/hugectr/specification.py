"""HugeCTR's interface as its specification says it: inventory, sample programs and notebooks."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT.parent / "shared" / "spec"
SPECIFICATION = FOLDER / "hugectr-python-interface.md"
INVENTORY = FOLDER / "hugectr-python-interface.inventory.json"
COMPANION = FOLDER / "companion" / "hugectr"


@cache
def inventory() -> list[dict[str, Any]]:
    """Return the documented items; none where they are not at hand."""
    if not INVENTORY.is_file():
        return []
    items: list[dict[str, Any]] = json.loads(INVENTORY.read_text(encoding="utf-8"))["items"]
    return items


@cache
def names_of(group: str) -> list[str]:
    """Return ``layer_types``, ``embeddings``, ``optimizers`` or ``update_types`` of the configuration document."""
    names: list[str] = json.loads(INVENTORY.read_text(encoding="utf-8"))["companion_spec"][group]
    return names


def sample(title: str) -> str:
    """Return the sample program under a heading."""
    match = re.search(rf"^### {title} ###\n.*?```bash\n(.*?)```", SPECIFICATION.read_text("utf-8"), re.DOTALL | re.M)
    assert match, f"no sample program under {title}"
    return match[1]


def notebook(name: str, number: int) -> str:
    """Return a notebook's cell without the line that writes it to a file."""
    cell = (COMPANION / f"notebook_{name}_{number}.txt").read_text(encoding="utf-8")
    first, _, rest = cell.partition("\n")
    assert first.startswith("%%writefile")
    return rest


def smaller(program: str, changes: dict[str, str]) -> str:
    """Return a program with small sizes; every pattern must occur."""
    for pattern, replacement in changes.items():
        program, count = re.subn(pattern, replacement, program)
        assert count, f"{pattern} is not in the program"
    return program
