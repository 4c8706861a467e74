"""Paths of the published regressors and example configurations, in a checkout and in an installation."""

from __future__ import annotations

from pathlib import Path

DATA_FOLDER = Path(__file__).resolve().parents[3] / "estimate_train_time" / "data"
REGRESSORS_FOLDER = DATA_FOLDER / "regressors"
EXAMPLES_FOLDER = DATA_FOLDER / "examples"
SYSTEM_FILE = "system.yaml"  # of every published system


def systems() -> list[str]:
    """Return the names of the published systems."""
    return sorted(path.parent.name for path in REGRESSORS_FOLDER.glob(f"*/{SYSTEM_FILE}"))


def is_system(name: str) -> bool:
    """Return whether a published system has a name, without listing them all."""
    return (REGRESSORS_FOLDER / name / SYSTEM_FILE).is_file()


def examples() -> list[str]:
    """Return the names of the bundled example configurations, without their ending."""
    return sorted(path.stem for path in EXAMPLES_FOLDER.glob("*.yml"))
