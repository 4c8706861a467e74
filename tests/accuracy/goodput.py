"""Print predicted goodput beside that of public histories: ``python -m tests.accuracy.goodput``.

A history's own counts take no part in its prediction: neither its failures nor its stops nor its planned stops. What
its team could have told beforehand (spares, checkpoints, restarts that it states) is in its budget.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from predictor.core.base.bundled import REGRESSORS_FOLDER
from predictor.core.base.read_yaml import read_mapping
from predictor.core.costs.published import open_system
from predictor.core.reliability.checkpointing import checkpointing_of
from predictor.core.reliability.job import Job
from predictor.core.reliability.reliability import reliability_of
from predictor.core.reliability.simulate import expected, simulate
from predictor.core.schema.sections import BudgetSection
from tests.accuracy.tables import Table, percent, signed

FILE = Path(__file__).with_suffix(".yaml")
DRAWS = 2000
HEAD = ("history", "reported %", "predicted %", "90 % interval", "error", "inside")
STEP_S = 10.0  # a checkpoint is no sooner than a step; steps of these trainings are shorter than what that changes
BYTES_PER_PARAMETER = 14.0  # weights in 16 bits, master weights and two moments in 32


@dataclass(frozen=True, slots=True)
class Compared:
    """A history beside its prediction; all shares of the wall time.

    Attributes:
        name: of the history.
        least, most: that its source reports.
        predicted: at the central rates.
        low, high: 90 % interval.
        interruptions: predicted in 30 days.
    """

    name: str
    least: float
    most: float
    predicted: float
    low: float
    high: float
    interruptions: float

    @property
    def error(self) -> float:
        """Return how far the prediction lies from the reported range, signed; 0 inside it."""
        return self.predicted - min(max(self.predicted, self.least), self.most)

    @property
    def is_inside(self) -> bool:
        """Return whether the interval reaches the reported range."""
        return self.low <= self.most and self.high >= self.least


def compared(name: str, facts: dict[str, Any]) -> Compared:
    """Return the prediction of a history without its own counts."""
    system = open_system(REGRESSORS_FOLDER / facts["system"], "bf16").hardware
    budget = BudgetSection.model_validate(facts["budget"])
    whole = BYTES_PER_PARAMETER * float(facts["parameters"])
    least, most = facts["reported"]
    job = Job(facts["gpus"], system.gpus_per_node, facts["days"] * 24.0 * most, whole / facts["gpus"], whole, STEP_S)
    reliability = reliability_of(budget, system, job.num_nodes, facts["without"])
    saves = checkpointing_of(job, reliability, budget, system)
    wall = expected(job, reliability, saves)
    drawn = simulate(job, reliability, saves, draws=DRAWS)
    return Compared(
        name=name,
        least=least,
        most=most,
        predicted=wall.goodput,
        low=drawn.goodput(0.05),
        high=drawn.goodput(0.95),
        interruptions=wall.interruptions / wall.hours * 720.0,
    )


def histories() -> list[Compared]:
    """Return all histories beside their predictions."""
    return [compared(name, facts) for name, facts in read_mapping(FILE).items()]


def table(rows: list[Compared]) -> Table:
    """Return the histories beside their predictions; in the last line the mean error and how many are inside."""
    lines = []
    for row in rows:
        reported = percent(100 * row.least) + ("" if row.least == row.most else f" to {percent(100 * row.most)}")
        ends = f"{percent(100 * row.low)} to {percent(100 * row.high)}"
        inside = "yes" if row.is_inside else "no"
        lines.append([row.name, reported, percent(100 * row.predicted, 1), ends, signed(100 * row.error), inside])
    error = percent(100 * fmean(abs(row.error) for row in rows), 1)
    last = [f"{len(rows)} histories", "", "", "", error, str(sum(row.is_inside for row in rows))]
    return Table("goodput", "Goodput of public histories, %", HEAD, [*lines, last])


def main() -> None:
    """Print the table, as Markdown with ``--markdown``."""
    found = table(histories())
    print("\n".join(found.markdown() if "--markdown" in sys.argv else found.text()))


if __name__ == "__main__":
    main()
