"""Published steps beside their modelled times: the rows that the discrepancy is fitted to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import log
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import numpy as np

from predictor.core.base.errors import ConfigError, PublishedError
from predictor.core.plan.loading import prepare
from predictor.core.step.composition import step_in
from predictor.core.step.discrepancy import operators_deviation, terms_of
from predictor.core.workload.measured_kernels import on_system
from predictor.core.workload.software import Framework
from predictor.core.workload.transformer_step import transformer_step
from predictor.evidence.published.tables import published_tables

# Rows of a source that take part: its mean is known long before, and all sources teach what differs between runs.
MOST_ROWS = 40


class Row(NamedTuple):
    """A published step beside its modelled time.

    Attributes:
        source: publication that it is of.
        same_as: equal for rows of one configuration.
        miss: log of measured over modelled time.
        host_share: of the step, predicted to be spent in waiting for the host.
        operators: deviation of the log of the step, of operators and machines.
    """

    source: str
    ordinary: bool
    framework: Framework | None
    terms: tuple[str, ...]
    groups: tuple[str, ...]
    same_as: str
    miss: float
    host_share: float
    operators: float
    num_gpus: int


def judged_rows(folder: Path) -> Iterator[Row]:
    """Yield every published step of a folder that can be predicted."""
    for step in published_tables(folder).steps:
        try:
            run, system, *_ = prepare(step.config, Path.cwd())
            modelled = step_in(run.precision, transformer_step(on_system(run, system)), system)
        except (ConfigError, PublishedError):
            continue
        yield Row(
            source=step.source,
            ordinary=step.ordinary,
            framework=run.framework,
            terms=terms_of(run, system, step.ordinary),
            groups=step.groups,
            same_as=repr(step.config),
            miss=log(step.seconds * 1e6 / modelled.modelled_us),
            host_share=modelled.host_share,
            operators=operators_deviation(modelled.step, modelled.closing),
            num_gpus=run.layout.num_gpus,
        )


def by_source(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Return the rows of every source, those of one configuration as one row with their mean."""
    same: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        same[row.source, row.same_as].append(row)
    sources: dict[str, list[Row]] = defaultdict(list)
    for (source, _), alike in same.items():
        sources[source].append(alike[0]._replace(miss=fmean(row.miss for row in alike)))
    return dict(sorted(sources.items()))


def rows_that_take_part(sources: Mapping[str, Sequence[Row]]) -> list[Row]:
    """Return at most so many rows of each source, spread over its table."""
    kept: list[Row] = []
    for rows in sources.values():
        places = np.linspace(0, len(rows) - 1, min(len(rows), MOST_ROWS)).round().astype(int)
        kept += [rows[place] for place in places]
    return kept
