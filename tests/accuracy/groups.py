"""Errors of published steps by group: time, interval, memory, beside the figures of an earlier commit."""

from __future__ import annotations

import json
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from math import inf
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

from predictor.core.base.errors import ConfigError, PublishedError
from predictor.core.step.memory import step_memory
from predictor.core.step.memory_verdict import fits_in_memory, memory_verdict_on
from predictor.evidence.published.tables import published_tables
from predictor.evidence.verification.measured import Compared, MeasuredStep
from tests.accuracy.compare_steps import compare
from tests.accuracy.tolerances import FEWEST_ROWS, GROUP_BARS, LEAST_INSIDE, MEDIAN_BARS, WIDEST

BEFORE = Path(__file__).with_name("before.json")
FASTEST_BATCH = "GPT-NeoX jobs"  # whose batches vary: the fastest of each job is judged, as its authors did


@dataclass(frozen=True, slots=True)
class Row:
    """A compared step, and the largest memory of its stages.

    Attributes:
        predicted_gib: of one GPU, counted as the measured peak was.
        fits: whether the GPU holds it; None where its memory is not known, or that cannot be told.
    """

    compared: Compared
    predicted_gib: float
    fits: bool | None

    @property
    def is_above(self) -> bool:
        """Return whether the measured time lies above the high end of the interval."""
        return self.compared.step.seconds * 1e6 > self.compared.prediction.step.high_us

    @property
    def width(self) -> float:
        """Return the high end of the interval over its low end."""
        cost = self.compared.prediction.step
        return cost.high_us / cost.low_us

    @property
    def memory_error(self) -> float | None:
        """Return predicted over measured memory, minus one; None where none was measured."""
        peak = self.compared.step.peak_gib
        return None if peak is None else self.predicted_gib / peak - 1.0


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of a group, in percent where the name says so.

    Attributes:
        memory_percent: mean absolute error of the rows whose memory was measured; None without such rows.
        unfit: rows that ran and do not fit by prediction.
        median_percent: of the errors; None in figures stored before it was one of them, as the next.
        above_percent: rows that took longer than the high end of their interval.
    """

    rows: int
    mean_absolute_percent: float
    mean_percent: float
    inside_percent: float
    high_over_low: float
    memory_percent: float | None
    unfit: int
    median_percent: float | None = None
    above_percent: float | None = None


@dataclass(frozen=True, slots=True)
class Judged:
    """Every row of the tables.

    Attributes:
        groups: compared rows by group.
        rows: every compared row once.
        refused: rows that a configuration expresses and the predictor refuses, by reason.
        unexpressed: rows that none expresses, by reason.
    """

    groups: Mapping[str, Sequence[Row]]
    rows: Sequence[Row]
    refused: Counter[str]
    unexpressed: Counter[str]
    num_rows: int


def row_of(step: MeasuredStep) -> Row:
    """Predict a step; errors as ``compare``."""
    compared = compare(step)
    stages = step_memory(compared.prediction.tasks)
    verdict = memory_verdict_on(max(stage.total for stage in stages), compared.system)
    return Row(compared, step.peak_of(stages), fits_in_memory(verdict))


def _judged_steps(steps: Iterable[MeasuredStep]) -> Iterator[MeasuredStep]:
    """Yield the steps, of jobs of one configuration only the fastest."""
    best: dict[str, MeasuredStep] = {}
    for step in steps:
        if not step.groups[0].startswith(FASTEST_BATCH):
            yield step
        elif step.statistic.startswith("min"):
            key = repr(step.config)
            if key not in best or step.seconds < best[key].seconds:
                best[key] = step
    yield from best.values()


def judge(folder: Path) -> Judged:
    """Compare every row of the tables of a folder.

    Raises:
        FileNotFoundError: it has none.
    """
    tables = published_tables(folder)
    groups: dict[str, list[Row]] = defaultdict(list)
    rows: list[Row] = []
    refused: Counter[str] = Counter()
    for step in _judged_steps(tables.steps):
        try:
            row = row_of(step)
        except (ConfigError, PublishedError) as error:
            refused[f"{step.groups[0]}: {error}"] += 1
            continue
        rows.append(row)
        for group in step.groups:
            groups[group].append(row)
    return Judged(dict(sorted(groups.items())), rows, refused, tables.unexpressed, tables.num_rows)


def figures(rows: Sequence[Row]) -> Figures:
    """Summarize at least one row."""
    errors = [row.compared.error for row in rows]
    memory = [abs(row.memory_error) for row in rows if row.memory_error is not None]
    return Figures(
        rows=len(rows),
        mean_absolute_percent=100 * fmean(map(abs, errors)),
        mean_percent=100 * fmean(errors),
        inside_percent=100 * fmean(row.compared.is_inside for row in rows),
        high_over_low=median(row.width for row in rows),
        memory_percent=100 * fmean(memory) if memory else None,
        unfit=sum(row.fits is False for row in rows),
        median_percent=100 * median(errors),
        above_percent=100 * fmean(row.is_above for row in rows),
    )


class Missed(NamedTuple):
    """Groups that miss what the project asks of itself, with the figure that misses.

    Attributes:
        error: mean absolute error, or size of the median error, above the group's bar, in percent.
        coverage: share inside the intervals that is too small, in percent.
        width: high end over low end too large, of steps in 16 bits without experts on GPUs with measured operators.
    """

    error: dict[str, float]
    coverage: dict[str, float]
    width: dict[str, float]


def _is_dense_in_16_bits_on_measured(row: Row) -> bool:
    run = row.compared.prediction.run
    measured = row.compared.system.files.names("operator")
    return bool(measured) and run.gemm_recipe is None and run.model.experts is None


def missed(judged: Judged) -> Missed:
    """Return the groups that miss their bars."""
    error: dict[str, float] = {}
    coverage: dict[str, float] = {}
    width: dict[str, float] = {}
    for name, rows in judged.groups.items():
        now = figures(rows)
        if now.mean_absolute_percent > GROUP_BARS.get(name, inf):
            error[name] = now.mean_absolute_percent
        if abs(now.median_percent or 0.0) > MEDIAN_BARS.get(name, inf):
            error[name] = abs(now.median_percent or 0.0)
        if now.rows >= FEWEST_ROWS and now.inside_percent < LEAST_INSIDE:
            coverage[name] = now.inside_percent
        if name in GROUP_BARS and all(map(_is_dense_in_16_bits_on_measured, rows)) and now.high_over_low > WIDEST:
            width[name] = now.high_over_low
    return Missed(error, coverage, width)


def read_before() -> tuple[str, dict[str, Figures]]:
    """Return what the stored figures are of, and the figures by group."""
    content = json.loads(BEFORE.read_text(encoding="utf-8"))
    return f"{content['commit']} of {content['date']}", {
        name: Figures(**given) for name, given in content["groups"].items()
    }


def store(judged: Judged, commit: str) -> None:
    """Write the figures as those to compare with."""
    groups = {name: _rounded(asdict(figures(rows))) for name, rows in judged.groups.items()}
    content = {"commit": commit, "date": date.today().isoformat(), "groups": groups}
    BEFORE.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _rounded(given: dict[str, Any]) -> dict[str, Any]:
    return {key: round(value, 2) if isinstance(value, float) else value for key, value in given.items()}


def current_commit() -> str:
    """Return the short hash of the checkout's commit."""
    asked = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(asked, capture_output=True, text=True, check=True, cwd=BEFORE.parent).stdout.strip()


def row_lines(rows: Sequence[Row]) -> Iterator[str]:
    """Yield a line per row of a group, the layout and the memory with it."""
    yield (
        f"{'row':46} {'GPUs':>5} {'tp pp dp cp':>14} {'mb × n':>9} {'measured s':>10} {'predicted':>9} {'error':>7} "
        "90 % interval, s   memory GiB: measured, predicted"
    )
    for row in rows:
        step, cost, layout = row.compared.step, row.compared.prediction.step, row.compared.prediction.run.layout
        run = row.compared.prediction.run
        sizes = (
            f"{layout.tensor_parallel_size} {layout.pipeline_parallel_size} {layout.data_parallel_size} "
            f"{layout.context_parallel_size}"
        )
        peak = "–" if step.peak_gib is None else f"{step.peak_gib:.1f}"
        yield (
            f"{step.name[-46:]:46} {step.num_gpus:5} {sizes:>14} "
            f"{run.micro_batch_size:4} × {run.num_micro_batches:<3} {step.seconds:9.3f} "
            f"{row.compared.seconds:9.3f} {row.compared.error:+7.1%} {cost.low_us / 1e6:.3f} to "
            f"{cost.high_us / 1e6:.3f}{'' if row.compared.is_inside else ' (outside)'}   {peak}, "
            f"{row.predicted_gib:.1f}{' DOES NOT FIT' if row.fits is False else ''}"
        )
