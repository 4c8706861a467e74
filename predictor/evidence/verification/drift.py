"""Drift of the machine: the reference kernel's time beside a run over that while the system was measured.

The kernel is microbench's (profiling/microbench/reference.py), timed by ``python -m microbench reference``.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from predictor.core.base.files import write_whole
from predictor.core.hardware.hardware import System
from predictor.evidence.verification.launching import RunFailed, Runner, last_line
from predictor.replay.files.record_model import RecordModel

FILE = "reference.json"
# A run is disturbed from here on: calls that agree within 10 % are steady to the timing policy of measurements too
# (profiling/microbench/timing.py, SETTLED_WITHIN), and operators are measured to a few percent.
MOST_DRIFT = 1.1
TIMEOUT_S = 300.0


class Reference(RecordModel):
    """The reference kernel before and after a launch, of as many processes at once as the run has ranks."""

    format: Literal["estimate-train-time/reference/1"] = "estimate-train-time/reference/1"
    device: str = Field(description="as microbench names it")
    processes: int = Field(ge=1)
    before_us: float = Field(gt=0)
    after_us: float = Field(gt=0)
    tries: int = Field(default=1, ge=1, description="launches, of which this is the quietest")

    @property
    def us(self) -> float:
        """Return the mean of the two times."""
        return (self.before_us + self.after_us) / 2.0


def read_reference(launch: Path) -> Reference | None:
    """Return what was timed beside a launch; None where nothing was, or the file is damaged."""
    try:
        return Reference.model_validate_json((launch / FILE).read_bytes())
    except (OSError, ValidationError):
        return None


def write_reference(launch: Path, reference: Reference) -> None:
    """Store what was timed beside a launch.

    Raises:
        OSError: it cannot be written.
    """
    write_whole(launch / FILE, reference.model_dump_json(indent=1) + "\n")


def drift(reference: Reference | None, system: System) -> float | None:
    """Return the reference kernel's time beside a launch ÷ while the system was measured.

    None where one of them is not known, or the run was on another device. Where the kernel was not timed with as many
    processes, the nearest smaller number counts, or else the smallest.
    """
    known = system.reference_us
    if reference is None or not known or reference.device != system.gpu.name:
        return None
    processes = max((count for count in known if count <= reference.processes), default=min(known))
    return reference.us / known[processes].value


def is_disturbed(of: float | None) -> bool:
    """Return whether the machine was busier than while it was measured."""
    return of is not None and of > MOST_DRIFT


def largest(drifts: Sequence[float | None]) -> float | None:
    """Return the largest known drift."""
    return max((each for each in drifts if each is not None), default=None)


def reference_now(runner: Runner, processes: int) -> tuple[str, float]:
    """Time the reference kernel and return the device and µs.

    Raises:
        RunFailed: it could not be timed.
    """
    words = ["-m", "microbench", "reference", "--device", runner.device, "--processes", str(processes)]
    try:
        done = subprocess.run(
            [runner.python, *words],
            env=runner.environment(), capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise RunFailed(f"the reference kernel is not timed after {TIMEOUT_S:g} s") from None
    if done.returncode:
        raise RunFailed(f"the reference kernel could not be timed: {last_line(done.stderr)}")
    told = json.loads(done.stdout)
    return str(told["device"]), float(told["us"])
