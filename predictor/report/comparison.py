"""Compare predictions side by side: every part of the step, and differences from the first."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from predictor.configuration.sections import NO_BUDGET, BudgetSection
from predictor.costs.published import PublishedSystem
from predictor.report.json_document import notes
from predictor.report.text import LABELS, duration, milliseconds, wrapped
from predictor.step.breakdown import StageParts, answers, stage_parts
from predictor.step.composition import Prediction
from predictor.step.memory import GIB, step_memory

FORMAT = "estimate-train-time/comparison/1"
LABEL_WIDTH = 34


@dataclass(frozen=True, slots=True)
class Compared:
    """One prediction of a comparison, and what it is called."""

    name: str
    prediction: Prediction
    system: PublishedSystem
    given: tuple[str, ...] = ()
    budget: BudgetSection = NO_BUDGET

    @property
    def fits(self) -> str:
        """Return whether it fits; nothing where the system does not say how much memory a GPU has."""
        limit = self.system.hardware.gpu.memory_gib
        return "" if limit is None else "yes" if self.memory_gib <= limit.value else "NO"

    @property
    def critical(self) -> StageParts:
        """Return where the stage spends the step whose end ends it."""
        return stage_parts(self.prediction)[self.prediction.critical_stage]

    @property
    def memory_gib(self) -> float:
        """Return what the fullest GPU needs."""
        return max(memory.total for memory in step_memory(self.prediction.tasks)) / GIB


def _notes(compared: list[Compared]) -> list[str]:
    """Return what a reader must know of each prediction, said once where all share it."""
    said: dict[str, list[str]] = {}
    for row in compared:
        for note in notes(row.prediction, row.system, answers(row.prediction, row.system), row.given):
            said.setdefault(note, []).append(row.name)
    shared = len(compared)
    return [
        f"Note: {note}" if len(names) == shared else f"Note on {', '.join(names)}: {note}"
        for note, names in said.items()
    ]


def _change(value: float, first: float) -> str:
    return f"{value / first - 1:+.1%}" if first > 0 else "-"


def _rows(compared: list[Compared]) -> list[tuple[str, list[str]]]:
    """Return label and cells of every line."""
    predictions = [row.prediction for row in compared]
    first = predictions[0].step.us
    rows = [
        ("step", [duration(p.step.us) for p in predictions]),
        ("– low end of the 90 % interval", [duration(p.step.low_us) for p in predictions]),
        ("– high end", [duration(p.step.high_us) for p in predictions]),
        ("– source", [p.step.source.label for p in predictions]),
        ("– against the first", ["", *(_change(p.step.us, first) for p in predictions[1:])]),
        ("GPUs", [f"{p.run.layout.num_gpus:,}" for p in predictions]),
        ("tokens/s", [f"{p.tokens_per_second:,.0f}" for p in predictions]),
        ("MFU", [f"{p.mfu:.1%}" for p in predictions]),
        ("memory of the fullest GPU, GiB", [f"{row.memory_gib:.1f}" for row in compared]),
        ("fits", [row.fits for row in compared]),
    ]
    critical = [row.critical for row in compared]
    names = [field.name for field in fields(StageParts) if field.name in LABELS]
    for name in names:
        values = [getattr(parts, name) for parts in critical]
        if any(abs(value) > 0.05 for value in values):
            rows.append((f"{LABELS[name]}, ms", [milliseconds(value) for value in values]))
    return rows


def render(compared: list[Compared], width: int = 100) -> str:
    """Return the comparison as a table: a column per prediction, parts of the critical stage; notes below it."""
    rows = _rows(compared)
    widths = [max(len(one.name), *(len(cells[i]) for _, cells in rows)) + 2 for i, one in enumerate(compared)]
    head = " " * LABEL_WIDTH + "".join(one.name.rjust(width) for one, width in zip(compared, widths, strict=True))
    lines = [
        label.ljust(LABEL_WIDTH) + "".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
        for label, cells in rows
    ]
    return "\n".join([*(line.rstrip() for line in (head, *lines)), *wrapped(_notes(compared), width, 6)])


def to_json(compared: list[Compared]) -> dict[str, Any]:
    """Return the comparison for machines."""
    from predictor.report.json_document import to_json as one_to_json

    return {
        "format": FORMAT,
        "compared": [
            {"name": row.name, "prediction": one_to_json(row.prediction, row.system, row.budget, row.given)}
            for row in compared
        ],
    }
