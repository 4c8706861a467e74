"""Three runs of a group calibrate, the rest of it judges: ``python -m tests.accuracy.calibrated_groups``."""

from __future__ import annotations

import random
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from math import exp, sqrt
from pathlib import Path
from statistics import fmean, median
from typing import NamedTuple

from predictor.base.errors import ConfigError, PublishedError
from predictor.calibration.contradictions import check_agreement
from predictor.calibration.fit import Fit, fit
from predictor.calibration.observations import Observation, observed_run
from predictor.calibration.priors import prior_deviations
from predictor.costs.hardware import COMPONENTS
from predictor.step.calibrated import TWO_SIDED_90, log_gradient, log_time
from predictor.verification.configurations import configured
from predictor.verification.published.tables import published_tables
from tests.conftest import SHARED

DRAWN = 3
DRAWS = 8
FEWEST_ROWS = 6


class Judged(NamedTuple):
    """Means over draws of three runs, of all other rows of a group, in percent where the name says so."""

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


def _half_width(run: Observation, fitted: Fit, logs: Sequence[float], here: float) -> float:
    gradient = log_gradient(run.time, run.system, logs, here)
    rows = fitted.covariance
    count = range(len(COMPONENTS))
    together = sum(gradient[i] * rows[i][j] * gradient[j] for i in count for j in count)
    return TWO_SIDED_90 * sqrt(together + fitted.residual**2)


def judge(rows: Sequence[Observation], seed: int = 14) -> Judged:
    """Return how three runs of a group predict the rest of it; a refused draw predicts as published."""
    draw = random.Random(seed)
    before, after, inside, widths = [], [], [], []
    refused = 0
    for _ in range(DRAWS):
        chosen = draw.sample(range(len(rows)), DRAWN)
        used = [rows[i] for i in chosen]
        rest = [row for i, row in enumerate(rows) if i not in chosen]
        priors = prior_deviations(used)
        fitted = fit(used, priors)
        logs = list(fitted.logs)
        try:
            check_agreement(used, fitted, priors)
        except ConfigError:
            refused += 1
        for run in rest[:40]:
            here = log_time(run.time, run.system, logs)
            half = _half_width(run, fitted, logs, here)
            before.append(abs(exp(log_time(run.time, run.system, [0.0] * len(logs)) - run.log_measured) - 1.0))
            after.append(abs(exp(here - run.log_measured) - 1.0))
            inside.append(abs(here - run.log_measured) <= half)
            widths.append(exp(2.0 * half))
    return Judged(len(rows), 100 * fmean(before), 100 * fmean(after), 100 * fmean(inside), median(widths), refused)


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
