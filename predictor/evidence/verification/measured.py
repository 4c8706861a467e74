"""A measured step and its deviation from the prediction."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Any, Literal

from predictor.core.costs.published import PublishedSystem
from predictor.core.step.composition import StepTime
from predictor.core.step.memory import GIB, StageMemory
from predictor.core.step.prediction import Prediction

PeakCounts = Literal["allocated", "reserved", "total"]


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """One measured step and the configuration that it ran.

    Attributes:
        table: of a paper, or a group of runs.
        name: of the run.
        seconds: of one step.
        config: in the full form.
        statistic: over several steps (min, median, …); empty where it is not known.
        peak_gib: largest memory that a GPU held, GiB; None where it is not known.
        peak_counts: what the peak counts, by its name in ``StageMemory``: tensors, the allocator's blocks, or all.
        groups: of runs that reports summarize, besides the table.
        source: the publication, which is left out as a whole where predictions are judged on sources never seen.
        ordinary: a training run of its users or of a test suite; a benchmark otherwise, tuned or a controlled sweep.
    """

    table: str
    name: str
    seconds: float
    num_gpus: int
    config: dict[str, Any]
    statistic: str = ""
    peak_gib: float | None = None
    peak_counts: PeakCounts = "total"
    groups: tuple[str, ...] = ()
    source: str = ""
    ordinary: bool = False

    def peak_of(self, stages: Iterable[StageMemory]) -> float:
        """Return the largest memory of a stage in GiB, counted as the measured peak was."""
        return max(float(getattr(stage, self.peak_counts)) for stage in stages) / GIB

    @property
    def label(self) -> str:
        """Return table and name."""
        return f"{self.table}: {self.name}"


@dataclass(frozen=True, slots=True)
class ComparedStep:
    """One measured step beside its prediction."""

    step: MeasuredStep
    prediction: StepTime
    system: PublishedSystem

    @property
    def seconds(self) -> float:
        """Return the predicted step time."""
        return self.prediction.step.us / 1e6

    @property
    def error(self) -> float:
        """Return predicted over measured, minus one."""
        return self.seconds / self.step.seconds - 1.0

    @property
    def is_inside(self) -> bool:
        """Return whether the measured time lies in the predicted interval."""
        cost = self.prediction.step
        return cost.low_us <= self.step.seconds * 1e6 <= cost.high_us


@dataclass(frozen=True, slots=True)
class Compared(ComparedStep):
    """One measured step of a transformer beside its prediction."""

    prediction: Prediction


@dataclass(frozen=True, slots=True)
class Summary:
    """Errors of several compared steps.

    Attributes:
        mape: mean of the absolute errors.
        median, worst: of the absolute errors.
        bias: mean error.
        least, most: the smallest and the largest error.
        coverage: share of the measured times that lie in their 90 % interval.
    """

    mape: float
    median: float
    worst: float
    bias: float
    least: float
    most: float
    coverage: float


def summary(rows: Sequence[ComparedStep]) -> Summary:
    """Summarize at least one comparison."""
    errors = [row.error for row in rows]
    inside = mean(row.is_inside for row in rows)
    sizes = [abs(error) for error in errors]
    return Summary(mean(sizes), median(sizes), max(sizes), mean(errors), min(errors), max(errors), inside)


def fastest(steps: Iterable[MeasuredStep]) -> list[MeasuredStep]:
    """Return each run's fastest step: the smallest of its rows with the statistic min."""
    best: dict[str, MeasuredStep] = {}
    for step in steps:
        if step.statistic.startswith("min") and (step.name not in best or step.seconds < best[step.name].seconds):
            best[step.name] = step
    return list(best.values())
