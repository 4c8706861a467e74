"""Stages of a study in order of value, each a process of its own with a share of the time.

Attention comes first: its kernel decides more of a step than any other choice. Then the cost of overlap, which nothing
else measures; the backward products of linear layers; sustained clocks, which heat the GPU; and the host.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from microbench.device import Device
from microbench.errors import MeasureError
from microbench.study import attention, gradients, launches, overlap, sustained
from microbench.study.part import Part, Say, open_record, run_parts
from microbench.survey.stages import Ended, Stage

SUMMARY, LOG = "study.json", "study.log"
END = 0.97  # of the study's time: what is left for stages that were cut off, or lost the GPU, ends here
FAILED, LOST = 1, 3


class StudyStage(NamedTuple):
    """What is measured, and the share of the study's time at which it ends."""

    parts: Callable[[Device], list[Part]]
    until: float


STAGES = {
    "attention": StudyStage(attention.parts, 0.32),
    "overlap": StudyStage(overlap.parts, 0.48),
    "gradient-products": StudyStage(gradients.parts, 0.66),
    "sustained-products": StudyStage(sustained.parts, 0.85),
    "launches": StudyStage(launches.parts, 0.95),
}


def stages(folder: Path) -> list[Stage]:
    """Return the commands of a study."""
    words = ("--out", str(folder), "--budget-minutes", "{minutes}")
    return [
        Stage(name, ("-m", "microbench", "study-stage", name, *words), stage.until) for name, stage in STAGES.items()
    ]


def unfinished(planned: list[Stage], ended: list[Ended]) -> list[Stage]:
    """Return the stages that were cut off or lost the GPU, to go on with in what time is left."""
    again = {stage.stage for stage in ended if stage.status in (None, LOST)}
    return [Stage(stage.name, stage.words, END) for stage in planned if stage.name in again]


def run_stage(name: str, folder: Path, device: Device, deadline: float, say: Say) -> int:
    """Measure what a stage's record lacks; return 0, FAILED where a part failed, or LOST where the GPU is.

    Raises:
        MeasureError: the stage is unknown, its record is of another machine, or it cannot be written.
    """
    if name not in STAGES:
        raise MeasureError(f"{name} is not a stage of a study; known: {', '.join(STAGES)}")
    from microbench.steps.measure import is_lost

    record = open_record(folder, name, device)
    outcome = run_parts(STAGES[name].parts(device), record, folder, deadline, lambda: is_lost(device.kind), say)
    say(
        f"{name}: {outcome.measured} parts measured, {outcome.there} were there, {outcome.failed} failed, "
        f"{outcome.not_begun} not begun"
    )
    if outcome.is_lost:
        say(f"{name}: the GPU fails every call of this process; another one goes on")
        return LOST
    return FAILED if outcome.failed else 0
