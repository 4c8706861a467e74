"""Tables of measurements as tests write them."""

from __future__ import annotations

from pathlib import Path


def written(folder: Path, name: str, text: str, origin: str) -> Path:
    """Write a table behind the line that names its origin."""
    path = folder / f"{name}.csv"
    path.write_text(origin + text, encoding="utf-8")
    return path
