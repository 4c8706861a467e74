"""All tests here need the packages of the extra recommend and of training/hugectr/engine-cpu.txt."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

NEEDED = ("fbgemm_gpu", "numpy", "pyarrow", "torch", "torchrec")
HERE = Path(__file__).parent

has_all = all(find_spec(name) for name in NEEDED)
collect_ignore = [] if has_all else [path.name for path in HERE.glob("test_*.py")]


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Let torch compute on one thread: models here are so small that a second one only waits."""
    if has_all:
        import torch

        torch.set_num_threads(1)
