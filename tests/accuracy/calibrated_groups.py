"""Three runs of a group calibrate, the rest of it judges: ``python -m tests.accuracy.calibrated_groups``."""

from __future__ import annotations

import random
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from math import exp, log
from pathlib import Path
from statistics import fmean, median
from typing import NamedTuple

from predictor.base.errors import ConfigError, PublishedError
from predictor.calibration.contradictions import check_agreement
from predictor.calibration.fit import Fit, fit
from predictor.calibration.observations import Observation, observed_run
from predictor.calibration.priors import prior_of
from predictor.costs.hardware import COMPONENTS
from predictor.step.calibrated import log_error, log_gradient, log_time
from predictor.verification.configurations import configured
from predictor.verification.published.tables import published_tables
from tests.conftest import SHARED

DRAWN = 3
DRAWS = 8
MOST_JUDGED = 40  # other rows of a group that one draw predicts, drawn as well
FEWEST_ROWS = 6


class Held(NamedTuple):
    """Means over draws of three runs, of the other rows of a group, in percent where the name says so."""

    rows: int
    before_percent: float
    after_percent: float
    inside_percent: float
    high_over_low: float
    refused: int


def observations(folder: Path) -> dict[str, list[Observation]]:
    """Return every published step that can be predicted, by the first of its groups."""
    groups: dict[str, list[Observation]] = defaultdict(list)
    for step in published_tables(folder).steps:
        try:
            configuration = configured(step.name, step.config, Path.cwd())
            groups[step.groups[0]].append(observed_run(configuration, step.seconds * 1e6, step.table))
        except (ConfigError, PublishedError):
            continue
    return groups


class _Predicted(NamedTuple):
    """A run's predicted time, and its 90 % interval, as logs."""

    time: float
    low: float
    high: float


def _calibrated(run: Observation, fitted: Fit) -> _Predicted:
    here = log_time(run.time, run.system, fitted.logs)
    half = log_error(log_gradient(run.time, run.system, fitted.logs, here), fitted.covariance, fitted.residual)
    return _Predicted(here, here - half, here + half)


def _published(run: Observation) -> _Predicted:
    here = log_time(run.time, run.system, [0.0] * len(COMPONENTS))
    return _Predicted(here, *map(log, run.interval))


def _fitted(runs: Sequence[Observation]) -> Fit | None:
    """Return what runs calibrate; None where they contradict each other, so that nothing is calibrated."""
    prior = prior_of(runs)
    fitted = fit(runs, prior)
    try:
        check_agreement(runs, fitted, prior.deviations)
    except ConfigError:
        return None
    return fitted


def judge(rows: Sequence[Observation], seed: int = 14) -> Held:
    """Return how three runs of a group predict others of it; a refused draw predicts as published."""
    draw = random.Random(seed)
    before, after, inside, widths = [], [], [], []
    refused = 0
    for _ in range(DRAWS):
        chosen = draw.sample(range(len(rows)), DRAWN)
        used = [rows[i] for i in chosen]
        rest = [row for i, row in enumerate(rows) if i not in chosen]
        fitted = _fitted(used)
        refused += fitted is None
        for run in draw.sample(rest, min(len(rest), MOST_JUDGED)):
            published = _published(run)
            predicted = published if fitted is None else _calibrated(run, fitted)
            before.append(abs(exp(published.time - run.log_measured) - 1.0))
            after.append(abs(exp(predicted.time - run.log_measured) - 1.0))
            inside.append(predicted.low <= run.log_measured <= predicted.high)
            widths.append(exp(predicted.high - predicted.low))
    return Held(len(rows), 100 * fmean(before), 100 * fmean(after), 100 * fmean(inside), median(widths), refused)


def table(groups: Mapping[str, Sequence[Observation]]) -> Iterator[str]:
    """Yield a line per group with enough rows."""
    yield (
        f"{'group':44} {'rows':>5} {'before %':>8} {'after %':>7} {'ratio':>6} {'inside %':>8} {'high/low':>8} "
        f"{'refused':>7}"
    )
    for name, rows in sorted(groups.items()):
        if len(rows) >= FEWEST_ROWS:
            told = judge(rows)
            yield (
                f"{name:44} {told.rows:5} {told.before_percent:8.1f} {told.after_percent:7.1f} "
                f"{told.after_percent / told.before_percent:6.2f} {told.inside_percent:8.0f} {told.high_over_low:8.2f} "
                f"{told.refused:4}/{DRAWS}"
            )


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else SHARED / "truth"
    print("\n".join(table(observations(folder))))
