"""All tests but those of configurations need the packages of the extras train and reference."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

NEEDED = ("lightning_fabric", "numpy", "safetensors", "tokenizers", "torch", "transformers")
HERE = Path(__file__).parent

has_all = all(find_spec(name) for name in NEEDED)
collect_ignore = (
    [] if has_all else [path.name for path in HERE.glob("test_*.py") if not path.name.startswith("test_config")]
)


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Let torch compute on one thread: models here are so small that a second one only waits."""
    if has_all:
        import torch

        torch.set_num_threads(1)
