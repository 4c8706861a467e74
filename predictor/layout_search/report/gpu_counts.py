"""The numbers of GPUs that a search for a deadline or a budget tried, as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from predictor.core.base.quantities import duration, span
from predictor.core.base.text_table import text_table
from predictor.layout_search.report.search_bill import Training


@dataclass(frozen=True, slots=True)
class Tried:
    """One number of GPUs.

    Attributes:
        num_gpus: of the run.
        step_us: of the fastest layout; None where none was searched, or none fits.
        training: in that layout.
        verdict: whether it meets the goals, or why not.
    """

    num_gpus: int
    step_us: float | None
    training: Training | None
    verdict: str


HEAD = ("GPUs", "step", "training", "goodput", "GPU-hours", "price")


def _cells(count: Tried) -> list[str]:
    step, training = count.step_us, count.training
    cells = [f"{count.num_gpus:,}", "-" if step is None else duration(step)]
    if training is None:
        return cells + ["-"] * 4
    price = "-" if training.price is None else f"{training.price:,.0f}"
    return [*cells, span(training.hours), f"{training.goodput:.1%}", f"{training.gpu_hours:,.0f}", price]


def table(counts: Sequence[Tried]) -> list[str]:
    """Return the numbers of GPUs as aligned lines, each with its verdict."""
    return text_table([[*HEAD, ""], *([*_cells(count), count.verdict] for count in counts)], left=(-1,))


def to_json(counts: Sequence[Tried]) -> list[dict[str, Any]]:
    """Return the numbers of GPUs for machines."""
    return [
        {
            "num_gpus": count.num_gpus,
            "time_us": count.step_us,
            "training": None if count.training is None else count.training.as_dict(),
            "verdict": count.verdict,
        }
        for count in counts
    ]
