"""Three runs of a group calibrate, the rest of it judges: ``python -m tests.accuracy.calibrated_groups``.

A group's three runs are drawn many times: what one draw shows is mostly the draw.
"""

from __future__ import annotations

import random
import sys
from collections import defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence
from math import exp, log
from pathlib import Path
from statistics import fmean, median
from typing import NamedTuple

from predictor.core.base.errors import ConfigError, PublishedError
from predictor.core.hardware.hardware import COMPONENTS
from predictor.core.step.calibrated import log_error, log_gradient, log_time
from predictor.evidence.calibration.answer import Calibrated
from predictor.evidence.calibration.contradictions import check_agreement
from predictor.evidence.calibration.factor_estimate import FactorEstimate, estimate_factors
from predictor.evidence.calibration.observations import Observation, observed_run
from predictor.evidence.calibration.priors import prior_of
from predictor.evidence.published.tables import published_tables
from predictor.evidence.verification.configurations import configured
from tests.conftest import SHARED

DRAWN = 3
DRAWS = 40
MOST_JUDGED = 40  # other rows of a group that one draw predicts, drawn as well
FEWEST_ROWS = 5


class Published(NamedTuple):
    """A published step: the run, and the derivatives of its modelled time's log."""

    run: Observation
    gradient: list[float]

    @property
    def log_published(self) -> float:
        """Return the log of the predicted time, what is not modelled included."""
        return self.run.log_published + self.run.expected


class Draw(NamedTuple):
    """Other rows of a group, beside three that calibrate.

    Attributes:
        before: mean absolute error as published.
        after: mean absolute error calibrated.
        inside: share of rows inside the 90 % interval.
        high_over_low: median of the intervals.
        refused: runs contradict each other, or factors do not help, so that all stays as published.
    """

    before: float
    after: float
    inside: float
    high_over_low: float
    refused: bool


def published_steps(folder: Path, only: Container[str] | None = None) -> dict[str, list[Published]]:
    """Return every published step that can be predicted, by the first of its groups; ``only`` those of some groups."""
    groups: dict[str, list[Published]] = defaultdict(list)
    for step in published_tables(folder).steps:
        if only is not None and step.groups[0] not in only:
            continue
        try:
            configuration = configured(step.name, step.config, Path.cwd())
            run = observed_run(configuration, step.seconds * 1e6, step.table)
        except (ConfigError, PublishedError):
            continue
        gradient = log_gradient(run.time, run.system, [0.0] * len(COMPONENTS), run.log_published)
        groups[step.groups[0]].append(Published(run, gradient))
    return groups


def of_one_system(groups: Mapping[str, Sequence[Published]]) -> dict[str, list[Published]]:
    """Return groups, and parts of one system of those that mix systems, which no calibration of a cluster does."""
    parts: dict[str, list[Published]] = defaultdict(list)
    for name, rows in groups.items():
        parts[name] = list(rows)
        if len({row.run.system.gpu for row in rows}) > 1:
            for row in rows:
                parts[f"{name}, {row.run.system.gpu}"].append(row)
    return parts


class _Predicted(NamedTuple):
    """A run's predicted time, and its 90 % interval, as logs."""

    time: float
    low: float
    high: float


def _predicted(row: Published, fitted: FactorEstimate | None) -> _Predicted:
    """Return a prediction, as published where nothing was calibrated; derivatives are those at published times."""
    if fitted is None:
        return _Predicted(row.log_published, *map(log, row.run.interval))
    here = log_time(row.run.time, row.run.system, fitted.logs)
    half = log_error(row.gradient, fitted.covariance, fitted.residual)
    return _Predicted(here, here - half, here + half)


def _fitted(rows: Sequence[Published]) -> FactorEstimate | None:
    """Return what runs calibrate; None where they contradict each other or no factors help."""
    runs = [row.run for row in rows]
    prior = prior_of(runs)
    fitted = estimate_factors(runs, prior)
    calibrated = Calibrated(Path(), runs[0].system.hardware, tuple(runs), prior.deviations, fitted, ())
    try:
        check_agreement(runs, fitted, prior.deviations)
        calibrated.check_that_it_helps()
    except ConfigError:
        return None
    return fitted


def _error(log_predicted: float, run: Observation) -> float:
    return abs(exp(log_predicted - run.log_measured) - 1.0)


def _judged(chosen: Sequence[Published], others: Sequence[Published]) -> Draw:
    fitted = _fitted(chosen)
    predicted = [_predicted(row, fitted) for row in others]
    return Draw(
        before=fmean(_error(row.log_published, row.run) for row in others),
        after=fmean(_error(each.time, row.run) for each, row in zip(predicted, others, strict=True)),
        inside=fmean(
            each.low <= row.run.log_measured <= each.high for each, row in zip(predicted, others, strict=True)
        ),
        high_over_low=median(exp(each.high - each.low) for each in predicted),
        refused=fitted is None,
    )


def draws(rows: Sequence[Published], count: int = DRAWS, seed: int = 14) -> list[Draw]:
    """Return how three runs of a group predict others of it, for so many threes."""
    draw = random.Random(seed)
    judged = []
    for _ in range(count):
        chosen = draw.sample(range(len(rows)), DRAWN)
        rest = [row for i, row in enumerate(rows) if i not in chosen]
        judged.append(_judged([rows[i] for i in chosen], draw.sample(rest, min(len(rest), MOST_JUDGED))))
    return judged


def table(groups: Mapping[str, Sequence[Published]]) -> Iterator[str]:
    """Yield a line per group with enough rows: means over draws, and ratios of errors, after over before."""
    yield (
        f"{'group':60} {'rows':>5} {'before %':>8} {'after %':>7} {'ratio':>6} {'median':>6} {'worst':>6} "
        f"{'inside %':>8} {'high/low':>8} {'refused':>7}"
    )
    for name, rows in sorted(groups.items()):
        if len(rows) >= FEWEST_ROWS:
            told = draws(rows)
            before, after = fmean(each.before for each in told), fmean(each.after for each in told)
            ratios = [each.after / each.before for each in told]
            yield (
                f"{name:60} {len(rows):5} {100 * before:8.1f} {100 * after:7.1f} {after / before:6.2f} "
                f"{median(ratios):6.2f} {max(ratios):6.2f} {100 * fmean(each.inside for each in told):8.0f} "
                f"{median(each.high_over_low for each in told):8.2f} {sum(each.refused for each in told):4}/{DRAWS}"
            )


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else SHARED / "truth"
    print("\n".join(table(of_one_system(published_steps(folder)))))
