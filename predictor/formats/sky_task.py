"""Read a task of SkyPilot: what its ``run`` starts, on the GPUs of its ``resources``.

Source: skypilot-org/skypilot, sky/task.py and docs/source/reference/yaml-spec.rst.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from predictor.core.schema.read import Read
from predictor.formats import commands
from predictor.formats.trainer import scripts

ACCELERATORS = re.compile(r"[\w.-]+['\"]?: ?(\d+)")  # A100:8, or a mapping


def read(path: Path, content: dict[str, Any], num_gpus: int | None = None) -> Read:
    """Read a task.

    Raises:
        ConfigError: it starts nothing that is known, or what it starts is not modelled.
    """
    run, resources = str(content.get("run") or ""), content.get("resources")
    wanted = resources.get("accelerators") if isinstance(resources, dict) else None
    found, nodes = ACCELERATORS.search(str(wanted)), content.get("num_nodes") or 1
    if num_gpus is None and wanted and type(nodes) is int:
        num_gpus = int(found[1] if found else 1) * nodes
    read_script = commands.read if commands.names_a_file(run, path.parent) else scripts.read
    return read_script(path, num_gpus, run)
