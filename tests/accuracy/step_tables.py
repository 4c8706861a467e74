"""Read tables of measured steps on machines whose GPUs were measured here, and of the parts of these steps."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from predictor.evidence.published.systems import BY_CLUSTER
from predictor.evidence.published.tables import STEPS, converted, read_rows
from predictor.evidence.verification.measured import MeasuredStep

COMPONENTS = "step_components.csv"


@dataclass(frozen=True, slots=True)
class MeasuredComponent:
    """One part of a measured step, in microseconds: a single value, or those of the first, a middle and the last stage.

    Attributes:
        run: name of the measured step.
        name: of the part.
        reference: predictions of the source itself; empty where it has none.
    """

    run: str
    name: str
    microseconds: list[float]
    reference: list[float]


def measured_steps(folder: Path) -> Iterator[MeasuredStep]:
    """Yield every row of step_times.csv that ran on a machine whose GPU was measured here.

    Raises:
        FileNotFoundError: the folder has no such table.
    """
    for row in read_rows(folder / STEPS):
        if any(known in row["system"] for known in BY_CLUSTER):
            yield converted(row)


def _numbers(text: str) -> list[float]:
    parsed = json.loads(text) if text else []
    return [float(x) for x in (parsed if isinstance(parsed, list) else [parsed])]


def measured_components(folder: Path) -> Iterator[MeasuredComponent]:
    """Yield every row of step_components.csv.

    Raises:
        FileNotFoundError: the folder has no such table.
    """
    for row in read_rows(folder / COMPONENTS):
        yield MeasuredComponent(
            run=row["job"],
            name=row["component"],
            microseconds=_numbers(row["measured_us_by_stage_first_middle_last"]),
            reference=_numbers(row["authors_prediction_us"]),
        )
