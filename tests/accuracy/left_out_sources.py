"""Coverage of sources that took no part: what a 90 % interval must mean for a run that nobody has seen.

``tables`` of a report asks a ``Without`` for the prediction of every row with the evidence of its publication left out.
``AS_PUBLISHED`` leaves nothing out: its coverage is in-sample.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import log
from pathlib import Path
from statistics import fmean, median
from typing import NamedTuple

from fitting.discrepancy import fitted, models_without
from fitting.published_rows import by_source, judged_rows, rows_that_take_part
from predictor.core.costs.cost import Cost
from predictor.core.step.composition import step_in
from predictor.core.step.discrepancy import DiscrepancyModel, discrepancy, discrepancy_model, operators_deviation
from tests.accuracy.groups import Row
from tests.accuracy.tables import Table, percent, signed

INSIDE = 0.9  # share that an interval promises
# From a publication to what predicts the step of a row without that publication's evidence.
Without = Callable[[str], Callable[[Row], Cost]]


class Covered(NamedTuple):
    """Rows of one publication.

    Attributes:
        inside: share of them inside their intervals.
        above: share that took longer than the high end.
        error: mean of predicted over measured, minus one; ``size`` of its absolute values.
        width: median of the high end over the low one.
        score: mean interval score of the logs: the width, and 20 times what lies outside. Less is better, and least
            where the ends are the 5 and 95 % quantiles (Gneiting and Raftery 2007, equation 43).
    """

    rows: int
    ordinary: bool
    error: float
    size: float
    inside: float
    above: float
    width: float
    score: float


def _as_published(source: str) -> Callable[[Row], Cost]:
    return lambda row: row.compared.prediction.step


AS_PUBLISHED: Without = _as_published


def left_out_evidence(folder: Path) -> Without:
    """Return predictions whose discrepancy was fitted to all other publications of a folder of tables."""
    rows, stored = list(judged_rows(folder)), discrepancy_model()
    start = fitted(rows_that_take_part(by_source(rows)))
    models = dict(models_without(rows, start, stored.low, stored.high))

    def without(source: str) -> Callable[[Row], Cost]:
        return lambda row: _predicted(row, models[source])

    return without


def _predicted(row: Row, model: DiscrepancyModel) -> Cost:
    """Return the step of a row by another model of what is not modelled."""
    prediction, system = row.compared.prediction, row.compared.system
    modelled = step_in(prediction.run.precision, prediction.tasks, system)
    operators = operators_deviation(modelled.step, modelled.closing)
    found = discrepancy(prediction.run, system, modelled.host_share, operators, model)
    return modelled.step if found is None else found.applied(modelled.step)


def interval_score(cost: Cost, measured: float) -> float:
    """Return the interval score of a 90 % interval's logs."""
    low, high, took = log(cost.low_us), log(cost.high_us), log(measured)
    return high - low + 2.0 / (1.0 - INSIDE) * max(low - took, took - high, 0.0)


def _covered(rows: Sequence[Row], predicted: Callable[[Row], Cost]) -> Covered:
    costs = [(predicted(row), row.compared.step.seconds * 1e6) for row in rows]
    errors = [cost.us / measured - 1.0 for cost, measured in costs]
    return Covered(
        rows=len(rows),
        ordinary=rows[0].compared.step.ordinary,
        error=fmean(errors),
        size=fmean(map(abs, errors)),
        inside=fmean(cost.low_us <= measured <= cost.high_us for cost, measured in costs),
        above=fmean(measured > cost.high_us for cost, measured in costs),
        width=median(cost.high_us / cost.low_us for cost, _ in costs),
        score=fmean(interval_score(cost, measured) for cost, measured in costs),
    )


def coverage(rows: Iterable[Row], without: Without = AS_PUBLISHED) -> dict[str, Covered]:
    """Return the coverage of every publication, its rows predicted without its own evidence."""
    by: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by[row.compared.step.source].append(row)
    return {source: _covered(own, without(source)) for source, own in sorted(by.items())}


def averaged(covered: Iterable[Covered]) -> Covered:
    """Return the means over publications, each of which counts once."""
    listed = list(covered)
    means = (fmean(each[field] for each in listed) for field in range(2, len(Covered._fields)))
    return Covered(sum(each.rows for each in listed), listed[0].ordinary, *means)


def _line(name: str, of: Covered) -> list[str]:
    figures = percent(100 * of.size, 1), signed(100 * of.error), percent(100 * of.inside), percent(100 * of.above)
    return [name, str(of.rows), *figures, f"{of.width:.2f}", f"{of.score:.2f}"]


def source_table(covered: Mapping[str, Covered], left_out: bool) -> Table:
    """Return the table of publications, with the means that count each once."""
    lines = [_line(source, of) for source, of in covered.items()]
    for name, ordinary in (("mean over sources of ordinary runs", True), ("mean over sources of benchmarks", False)):
        if own := [of for of in covered.values() if of.ordinary is ordinary]:
            lines.append(_line(name, averaged(own)))
    lines.append(_line("mean over all sources", averaged(covered.values())))
    how = "each left out of the evidence" if left_out else "in-sample: none left out of the evidence"
    head = ("source", "rows", "mean abs. %", "mean %", "inside %", "above %", "high/low", "interval score")
    return Table("sources", f"Publications, each counts once in the means ({how})", head, lines)
