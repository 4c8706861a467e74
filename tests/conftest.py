"""Where the tests find things, and what they skip where a machine lacks it."""

from __future__ import annotations

import gc
import os
import shutil
import signal
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared"
# A marker, and the command whose absence skips its tests.
NEEDED_COMMANDS = {"gpu": "nvidia-smi", "slurm": "sbatch"}
THOROUGH = "THOROUGH_TESTS"

try:
    from hypothesis import settings
except ImportError:  # on a bare GPU machine, which runs tests/gpu alone
    pass
else:
    # The same examples every time, and no clock: neither luck nor a slow machine decides a test.
    settings.register_profile("reproducible", derandomize=True, deadline=None)
    settings.load_profile("reproducible")


# A shell ignores SIGINT in its background jobs, and every child inherits that: a test that interrupts a program would
# wait for its end in vain.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Look for circular garbage less often: rounds among what thousands of tests keep took a seventh of their time."""
    gc.set_threshold(50_000, 20, 20)


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker, command in NEEDED_COMMANDS.items():
        if item.get_closest_marker(marker) and shutil.which(command) is None:
            pytest.skip(f"marked {marker}: this machine has no {command}")
    if item.get_closest_marker("thorough") and not os.environ.get(THOROUGH):
        pytest.skip(f"takes long, and a part of it ran; make test-thorough runs it (it sets {THOROUGH}=1)")


def _folder(path: Path, contents: str) -> Path:
    if not path.is_dir():
        pytest.skip(f"no {contents} in {path}")
    return path


@pytest.fixture(scope="session")
def root() -> Path:
    """Return the checkout."""
    return ROOT


@pytest.fixture(scope="session")
def measurements() -> Path:
    """Return the folder of measurement tables: ``MEASUREMENTS``, or the one beside the checkout; skip if absent."""
    return _folder(Path(os.environ.get("MEASUREMENTS", SHARED / "measurements")), "measurement tables")


@pytest.fixture(scope="session")
def truth() -> Path:
    """Return the folder of measured step times beside the checkout; skip where it is absent."""
    return _folder(SHARED / "truth", "measured step times")
