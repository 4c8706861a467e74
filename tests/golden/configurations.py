"""The table of golden configurations: small differences to a few bases, in ``configurations.yaml``."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from predictor.core.schema.merging import merged

TABLE = Path(__file__).with_name("configurations.yaml")
READERS = Path(__file__).resolve().parents[1] / "data" / "readers"
PUBLISHED = Path(__file__).resolve().parents[2] / "regressors"
PREDICT = "predict CONFIG --json"


@dataclass(frozen=True, slots=True)
class Configuration:
    """One row of the table.

    Attributes:
        command: a command line with placeholders.
        content: of the configuration file; empty where the command line names everything.
    """

    name: str
    command: str
    content: dict[str, Any]


def _resolved(entry: dict[str, Any], bases: dict[str, Any]) -> dict[str, Any]:
    """Return an entry of the table as a change of its base, which may have a base in turn."""
    own = {key: value for key, value in entry.items() if key != "base"}
    return merged(_resolved(bases[entry["base"]], bases), own) if "base" in entry else own


def configurations() -> list[Configuration]:
    """Return every golden configuration, in the order of the table."""
    table = yaml.safe_load(TABLE.read_text(encoding="utf-8"))
    rows = []
    for name, entry in table["configurations"].items():
        content = _resolved(entry, table["bases"])
        rows.append(Configuration(name, content.pop("command", PREDICT), content))
    return rows


def publish_fp32(folder: Path, system: str = "Perlmutter") -> Path:
    """Write a published system whose regressors say fp32, and return its folder.

    No published system was measured in fp32. The times are those of fp16 and predict nothing, but elements of four
    bytes pass through the same code. Memory, power and launch times, all optional, are absent.
    """
    hardware: dict[str, Any] = yaml.safe_load((PUBLISHED / system / "system.yaml").read_text(encoding="utf-8"))
    published = folder / f"{system}-fp32"
    hardware["name"] = published.name
    gpu = {key: value for key, value in hardware["gpu"].items() if key not in ("memory_gib", "board_power_w")}
    hardware["gpu"] = gpu | {"peak_tflop_per_s": {"fp32": gpu["peak_tflop_per_s"]["fp16"]}}
    hardware["host"] = {}
    texts = {"system.yaml": yaml.safe_dump(hardware), "card.md": "fp16 times that say fp32\n"}
    for path in sorted((PUBLISHED / system).glob("*/*_fp16.json")):
        name = f"{path.parent.name}/{path.name.replace('_fp16.', '_fp32.')}"
        texts[name] = json.dumps(json.loads(path.read_text(encoding="utf-8")) | {"precision": "fp32"})
    manifest = {
        "format": json.loads((PUBLISHED / system / "manifest.json").read_text(encoding="utf-8"))["format"],
        "files": {name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()},
    }
    texts["manifest.json"] = json.dumps(manifest)
    for name, text in texts.items():
        path = published / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
    return published
