"""Compare predictions side by side: every part of the step, and differences from the first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from predictor.core.base.quantities import duration, milliseconds
from predictor.core.base.text_table import text_table
from predictor.core.costs.cost import Source
from predictor.core.plan.loading import Loaded
from predictor.core.report import json_document
from predictor.core.report.budget import prediction_bill
from predictor.core.report.stage_table import LABELS
from predictor.core.report.text import wrapped
from predictor.core.step.breakdown import StageParts, answers, source_shares, stage_parts
from predictor.core.step.memory import GIB, step_memory
from predictor.core.step.memory_verdict import MemoryVerdict, memory_verdict_on
from predictor.core.step.prediction import Prediction

FORMAT = "estimate-train-time/comparison/1"
VERDICTS = {None: "", MemoryVerdict.FITS: "yes", MemoryVerdict.MAY_NOT_FIT: "may not", MemoryVerdict.DOES_NOT_FIT: "NO"}


@dataclass(frozen=True, slots=True)
class Compared:
    """One prediction of a comparison, with its name."""

    name: str
    prediction: Prediction
    loaded: Loaded

    @property
    def critical(self) -> StageParts:
        """Return the breakdown of the critical stage."""
        return stage_parts(self.prediction)[self.prediction.critical_stage]

    @property
    def memory(self) -> float:
        """Return the bytes of the fullest GPU."""
        return max(memory.total for memory in step_memory(self.prediction.tasks))


def _notes(compared: list[Compared]) -> list[str]:
    """Return the notes of all predictions; a note that all share has no names."""
    said: dict[str, list[str]] = {}
    for row in compared:
        answered = answers(row.prediction, row.loaded.system)
        for note in json_document.notes(row.prediction, row.loaded, answered):
            said.setdefault(note, []).append(row.name)
    shared = len(compared)
    return [
        f"Note: {note}" if len(names) == shared else f"Note on {', '.join(names)}: {note}"
        for note, names in said.items()
    ]


def _inside(compared: Compared) -> float:
    """Return the share of the step that is measured or interpolated."""
    shares = source_shares(compared.prediction, compared.loaded.system)
    return sum(share for source, share in shares.items() if source <= Source.INTERPOLATED)


def _rows(compared: list[Compared]) -> list[tuple[str, list[str]]]:
    """Return label and cells of every line."""
    predictions = [row.prediction for row in compared]
    first = predictions[0].step.us
    changes = [f"{p.step.us / first - 1:+.1%}" if first > 0 else "-" for p in predictions[1:]]
    rows = [
        ("step", [duration(p.step.us) for p in predictions]),
        ("– low end of the 90 % interval", [duration(p.step.low_us) for p in predictions]),
        ("– high end", [duration(p.step.high_us) for p in predictions]),
        ("– of it measured or interpolated", [f"{_inside(row):.0%}" for row in compared]),
        ("– against the first", ["", *changes]),
        ("GPUs", [f"{p.run.layout.num_gpus:,}" for p in predictions]),
        ("tokens/s", [f"{p.tokens_per_second:,.0f}" for p in predictions]),
        ("MFU", [f"{p.mfu:.1%}" for p in predictions]),
        ("memory of the fullest GPU, GiB", [f"{row.memory / GIB:.1f}" for row in compared]),
        ("fits", [VERDICTS[memory_verdict_on(row.memory, row.loaded.system)] for row in compared]),
    ]
    rows += _power(compared)
    critical = [row.critical for row in compared]
    for name in LABELS:
        values = [getattr(parts, name) for parts in critical]
        if any(abs(value) > 0.05 for value in values):
            rows.append((f"{LABELS[name]}, ms", [milliseconds(us, first) for us in values]))
    return rows


def _power(compared: list[Compared]) -> list[tuple[str, list[str]]]:
    """Return power and energy of predictions whose GPUs draw different power; none of those that draw the same."""
    bills = [prediction_bill(row.prediction, row.loaded, draws=0) for row in compared]
    watts = [bill.power_per_gpu_w for bill in bills]
    if len(set(watts)) == 1:
        return []
    tokens = [bill.steps * row.prediction.run.tokens_per_step for bill, row in zip(bills, compared, strict=True)]
    energy = [None if bill.energy_kwh is None else bill.energy_kwh / of for bill, of in zip(bills, tokens, strict=True)]
    return [
        ("W a GPU, with its share of the node", ["-" if each is None else f"{each:,.0f}" for each in watts]),
        ("kWh for 10⁹ tokens", ["-" if each is None else f"{1e9 * each:,.1f}" for each in energy]),
    ]


def render(compared: list[Compared], width: int = 100) -> str:
    """Return the comparison as a table: a column per prediction, parts of the critical stage; notes below it."""
    rows = [("", [row.name for row in compared]), *_rows(compared)]
    table = text_table([(label, *cells) for label, cells in rows])
    return "\n".join([*table, *wrapped(_notes(compared), width, 6)])


def to_json(compared: list[Compared]) -> dict[str, Any]:
    """Return the comparison for machines."""
    return {
        "format": FORMAT,
        "compared": [
            {"name": row.name, "prediction": json_document.to_json(row.prediction, row.loaded)} for row in compared
        ],
    }
