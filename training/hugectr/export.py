"""Predictions and labels of an evaluation as text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np


def write_columns(path: Path, values: np.ndarray[Any, np.dtype[Any]]) -> None:
    """Write one line per sample, its values with blanks between."""
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savetxt(path, values, fmt="%.9g")
