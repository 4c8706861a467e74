"""Time marks of the parts of steps, and the spans, samples and provenance made from them.

Whoever runs steps marks where each part begins; on a GPU times come from its events, so that the host does not wait.
"""

from __future__ import annotations

import json
import platform
import re
import socket
import subprocess
from datetime import UTC, datetime
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch

from model_training_framework.health.marks import Marks
from model_training_framework.trainer.checkpoint import versions
from predictor.core.timeline.pipeline import Stream
from predictor.core.timeline.spans import Span
from predictor.replay.files.measured_step import BACKWARD, DATA, FORWARD, OPTIMIZER, PARTS, StepProvenance

GIT_TIMEOUT_S = 20


def device_name(device: Any) -> str:
    """Return the name of a GPU, or of the processor as the kernel has it."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    info = Path("/proc/cpuinfo")
    text = info.read_text(encoding="utf-8", errors="replace") if info.is_file() else ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1] if found else platform.processor() or platform.machine()


def library_versions(device: Any) -> dict[str, str]:
    """Return the versions of the libraries that ran."""
    found = versions()
    if device.type == "cuda":
        found["cuda"] = str(torch.version.cuda or torch.version.hip)
        found["cudnn"] = str(torch.backends.cudnn.version())
    return found


def commit(folder: Path) -> str:
    """Return the commit that a folder is checked out at, with -dirty where it was changed; « unknown » without one."""
    git = ["git", "-C", str(folder)]
    options: dict[str, Any] = {"capture_output": True, "text": True, "timeout": GIT_TIMEOUT_S, "check": True}
    try:
        head = subprocess.run([*git, "rev-parse", "HEAD"], **options)
        changed = subprocess.run([*git, "status", "--porcelain", "--untracked-files=no"], **options)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return str(head.stdout).strip() + ("-dirty" if changed.stdout.strip() else "")


def config_hash(text: str) -> str:
    """Return the SHA-256 of a configuration's text."""
    return sha256(text.encode()).hexdigest()


STREAMS = {DATA: "data loading", FORWARD: Stream.COMPUTE, BACKWARD: Stream.COMPUTE, OPTIMIZER: Stream.OPTIMIZER}


class RunFacts(NamedTuple):
    """What a record says of the run beside its times.

    Attributes:
        rank, world_size: of this process and of the run.
        device: torch's.
        precision, strategy: in the runner's own words.
        description: the configuration.
    """

    rank: int
    world_size: int
    device: Any
    num_micro_batches: int
    precision: str
    strategy: str
    description: dict[str, Any]


class StepTimer(Marks):
    """Marks of steps, of which those that are timed are kept."""

    def __init__(self, is_gpu: bool = False) -> None:
        """Choose the clock."""
        super().__init__(is_gpu)
        self._timed: list[list[tuple[str, Any]]] = []

    @property
    def num_timed(self) -> int:
        """Return the number of steps that are kept."""
        return len(self._timed)

    def keep(self, marks: list[tuple[str, Any]]) -> None:
        """Keep a step that was taken."""
        self._timed.append(marks)

    def _spans(self, marks: list[tuple[str, Any]], rank: int) -> list[Span]:
        """Return a step's parts."""
        start = marks[0][1]
        spans: list[Span] = []
        micro_batch = -1
        for (part, begin), (_, end) in pairwise(marks):
            micro_batch += part == FORWARD
            details = {"pass": part, "micro_batch": max(0, micro_batch + (part == DATA)), "chunk": 0}
            times = (self.us(start, begin), self.us(start, end))
            spans.append(Span(part, rank, STREAMS[part], *times, category=part, details=details))
        return spans

    def record(self, facts: RunFacts, first_step: int, warm_up: int) -> tuple[list[Span], StepProvenance]:
        """Return the spans of the step nearest the median, and the samples of all; the kept steps are forgotten."""
        if self.is_gpu:
            torch.cuda.synchronize()
        steps = [self._spans(marks, facts.rank) for marks in self._timed]
        samples = [spans[-1].end_us for spans in steps]
        step_us = median(samples)
        nearest = min(range(len(steps)), key=lambda i: abs(samples[i] - step_us))
        text = json.dumps(facts.description, sort_keys=True, default=str)
        provenance = StepProvenance(
            title=f"measured, rank {facts.rank} of {facts.world_size}",
            step_us=step_us,
            samples_us=tuple(samples),
            parts_us={
                part: tuple(sum(s.duration_us for s in spans if s.name == part) for spans in steps) for part in PARTS
            },
            first_step=first_step,
            warm_up=warm_up,
            rank=facts.rank,
            world_size=facts.world_size,
            num_micro_batches=facts.num_micro_batches,
            precision=facts.precision,
            strategy=facts.strategy,
            device=device_name(facts.device),
            device_kind=facts.device.type,
            host=socket.gethostname(),
            commit=commit(Path.cwd()),
            versions=library_versions(facts.device),
            configuration=json.loads(text),
            config_hash=config_hash(text),
            finished=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        self._timed.clear()
        self.marks.clear()
        return steps[nearest], provenance
