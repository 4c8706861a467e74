"""Folders of the published regressors and of the example configurations."""

from __future__ import annotations

from pathlib import Path

from predictor.core.base.bundled import DATA_FOLDER, EXAMPLES_FOLDER, REGRESSORS_FOLDER


def get_data_path() -> Path:
    """Return the folder of all bundled data."""
    return DATA_FOLDER


def get_regressors_path() -> Path:
    """Return the folder of the published systems."""
    return REGRESSORS_FOLDER


def get_examples_path() -> Path:
    """Return the folder of the example configurations."""
    return EXAMPLES_FOLDER
