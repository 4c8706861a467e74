"""Fit what the model of a step leaves out to steps that others published: ``python -m fitting discrepancy``.

It writes ``predictor/core/step/discrepancy.yaml``, of which points and intervals are made. The coverage that it prints
is of sources (a publication with all its rows) that took no part; ``python -m tests.accuracy.report`` lists them.

The log of measured over modelled time is a sum of terms (of all runs, of the framework, of the tables of the GPU, of
the kind of run), of the deviation of its source, and of what remains. Terms and sources are random effects: variances
are found by maximum marginal likelihood, with a Student distribution of the sources, so that one that errs wildly
neither moves the others nor is forgotten (Gelman et al. 2013, Bayesian Data Analysis, chapters 5 and 17). The
interval is the shortest that holds 90 % of left-out errors in units of their predicted deviation, every source counted
once (Lei et al. 2018, Distribution-free predictive inference for regression).
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import exp, log
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import numpy as np
import yaml
from numpy.typing import NDArray
from scipy.optimize import minimize
from threadpoolctl import threadpool_limits

from fitting.published_rows import Row, by_source, judged_rows, rows_that_take_part
from predictor.core.base.files import write_whole
from predictor.core.step.discrepancy import (
    ALL,
    DATA,
    FRAMEWORK,
    ORDINARY,
    TABLES,
    UNMEASURED,
    DiscrepancyModel,
    Runs,
    deviation_of,
)
from predictor.core.workload.software import Framework

Array = NDArray[np.float64]
FEWEST_SOURCES = 3  # of a framework that has a deviation between sources of its own
FREEDOM = 4.0  # degrees of freedom of the sources' Student distribution, and weight of the common deviation
# Deviations of terms that are alone of their kind, so that no variance can be found for them: as wide as a guess.
SINGLE = {ALL: 0.1, ORDINARY: 0.2, UNMEASURED: 0.2}
VARIANCES = ("framework", "tables", "kind", "source", "within", "host", "ordinary", "operators")
# Beforehand: a deviation of about 7 %, within a factor of two; ordinary runs apart twice as far as tuned ones; a
# quarter of the variance of operators' own intervals.
START, SPREAD = log(0.07), 0.7
# A step that does nothing but wait for its host errs as processors differ: launches take 7 to 20 µs
# (core/hardware/host_processors.yaml), read as a 90 % range of log(3) / 2 / 1.645.
START_POINT = (*[START] * 5, log(0.33), log(2.0), -1.0)
ROUNDS, SETTLED = 10, 0.02  # of variances and weights of the sources in turn, until no log of a variance moves by more
COVERED = 0.9  # share of the left-out rows inside
LEAST_QUANTILE = 1.0  # in deviations: few sources tell no narrower interval
HEAD = """\
# Distribution of measured over modelled time of published steps: terms of a hierarchical model of its log. Written by
# python -m fitting discrepancy --store from steps that others published; their sources are in
# predictor/evidence/published, the method in docs/adr/0038-model-discrepancy.md.

"""


class Design(NamedTuple):
    """Rows as matrices: which terms each has, and which source."""

    names: list[str]
    sources: list[str]
    terms: Array
    membership: Array
    ordinary: Array
    miss: Array
    host: Array
    operators: Array


def _design(rows: Sequence[Row]) -> Design:
    names = sorted({name for row in rows for name in row.terms})
    sources = sorted({row.source for row in rows})
    return Design(
        names,
        sources,
        np.array([[float(name in row.terms) for name in names] for row in rows]),
        np.array([[float(row.source == source) for source in sources] for row in rows]),
        np.array([row.ordinary for row in rows]),
        np.array([row.miss for row in rows]),
        np.array([row.host_share for row in rows]),
        np.array([row.operators for row in rows]),
    )


def _prior(names: Sequence[str], deviations: Mapping[str, float]) -> Array:
    """Return the variance of every term before any run."""
    words = {FRAMEWORK: "framework", TABLES: "tables"}
    given = []
    for name in names:
        group = next((group for word, group in words.items() if name.startswith(word)), "kind")
        given.append(SINGLE.get(name, deviations[group]) ** 2)
    return np.array(given)


class _Covariance(NamedTuple):
    """Covariance of the misses: factor · factorᵀ + diag(own), whose few columns make its inverse cheap (Woodbury)."""

    factor: Array
    own: Array

    def _inner(self) -> tuple[Array, Array]:
        scaled = self.factor / self.own[:, None]
        return scaled, np.eye(self.factor.shape[1]) + self.factor.T @ scaled

    def inverse(self) -> Array:
        """Return its inverse."""
        scaled, inner = self._inner()
        return np.asarray(np.diag(1.0 / self.own) - scaled @ np.linalg.solve(inner, scaled.T))

    def loss(self, miss: Array) -> float:
        """Return the negative log-likelihood of misses around 0, but for a constant."""
        scaled, inner = self._inner()
        lower = np.linalg.cholesky(inner)
        explained = np.linalg.solve(lower, scaled.T @ miss)
        squares = float(miss @ (miss / self.own) - explained @ explained)
        return 0.5 * squares + 0.5 * float(np.log(self.own).sum()) + float(np.log(np.diag(lower)).sum())


def _covariance(design: Design, deviations: Mapping[str, float], weights: Array) -> _Covariance:
    """Return the covariance of the misses; ``weights`` of sources below 1 widen them."""
    times = np.where(design.ordinary, deviations["ordinary"], 1.0)
    members = design.membership * (deviations["source"] / np.sqrt(weights)) * times[:, None]
    hosts = design.membership * (design.host * deviations["host"])[:, None]
    terms = design.terms * np.sqrt(_prior(design.names, deviations))
    own = (deviations["within"] * times) ** 2 + deviations["operators"] * design.operators**2
    return _Covariance(np.hstack([terms, members, hosts]), own)


def _deviations(point: Array) -> dict[str, float]:
    """Return the deviations of a point of the search; the operators' share lies between 0 and 1."""
    return {**dict(zip(VARIANCES, np.exp(point).tolist(), strict=True)), "operators": 1.0 / (1.0 + exp(-point[-1]))}


class Fitted(NamedTuple):
    """Deviations, weights of the sources, and the terms after the rows.

    Attributes:
        point: of the search for the deviations.
        effects: expected square of every source's deviation, in units of the common variance.
    """

    design: Design
    point: Array
    deviations: dict[str, float]
    weights: Array
    means: Array
    covariance: Array
    effects: Array


def _searched(design: Design, weights: Array, start: Array) -> Array:
    """Return the point of maximum marginal likelihood."""

    def loss(point: Array) -> float:
        beforehand = np.sum((point[:-1] - START_POINT[:-1]) ** 2) / (2.0 * SPREAD**2) + (point[-1] + 1.0) ** 2 / 8.0
        return _covariance(design, _deviations(point), weights).loss(design.miss) + float(beforehand)

    with threadpool_limits(1):  # small matrices: threads that wait for one another cost thirty times the sums
        return np.asarray(minimize(loss, start, method="L-BFGS-B", options={"maxiter": 40}).x)


def fitted(rows: Sequence[Row], start: Fitted | None = None) -> Fitted:
    """Return the model of some rows.

    Args:
        rows: of at least two sources.
        start: a like fit, from whose deviations the search begins. Its weights are not taken over: they would tell what
            a source that is left out says of the others.
    """
    design = _design(rows)
    point = np.array(START_POINT) if start is None else start.point
    weights = effects = np.ones(len(design.sources))
    for _ in range(ROUNDS):
        before, point = point, _searched(design, weights, point)
        deviations = _deviations(point)
        inverse = _covariance(design, deviations, weights).inverse()
        ordinary = (design.membership.T @ design.ordinary) > 0.0
        common = (deviations["source"] * np.where(ordinary, deviations["ordinary"], 1.0)) ** 2
        variance = common / weights
        means = variance * (design.membership.T @ inverse @ design.miss)
        left = variance - variance**2 * np.einsum("ij,ik,kj->j", design.membership, inverse, design.membership)
        effects = (means**2 + left) / common
        weights = (FREEDOM + 1.0) / (FREEDOM + effects)
        if np.abs(point - before).max() < SETTLED:
            break
    gain = _prior(design.names, deviations)[:, None] * design.terms.T
    inverse = _covariance(design, deviations, weights).inverse()
    covariance = np.diag(_prior(design.names, deviations)) - gain @ inverse @ gain.T
    return Fitted(design, point, deviations, weights, gain @ inverse @ design.miss, covariance, effects)


def _between_sources(found: Fitted, rows: Sequence[Row]) -> dict[str, float]:
    """Return the deviation between tuned sources by framework, drawn towards the common one where there are few."""
    common = found.deviations["source"] ** 2
    effects = dict(zip(found.design.sources, (found.effects * found.weights).tolist(), strict=True))
    of: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        of[str(row.framework)].add(row.source)
    between = {
        name: (common * (FREEDOM + sum(effects[source] for source in sources)) / (FREEDOM + len(sources))) ** 0.5
        for name, sources in sorted(of.items())
        if len(sources) >= FEWEST_SOURCES
    }
    return {**between, "other": common**0.5}


def _runs(rows: Sequence[Row]) -> Iterator[Runs]:
    """Yield the published runs of every framework, tuned and ordinary, and those of any."""
    kinds: dict[tuple[Framework | None, bool], list[Row]] = defaultdict(list)
    for row in rows:
        kinds[row.framework, row.ordinary].append(row)
        kinds[None, row.ordinary].append(row)
    for (framework, ordinary), alike in sorted(kinds.items(), key=lambda item: (str(item[0][0]), item[0][1])):
        sources = by_source(alike)
        sizes = [row.num_gpus for row in alike]
        yield Runs(
            framework=framework,
            ordinary=ordinary,
            rows=len(alike),
            sources=len(sources),
            fewest_gpus=min(sizes),
            most_gpus=max(sizes),
            mean_log=round(fmean(fmean(row.miss for row in own) for own in sources.values()), 4),
        )


def model_of(rows: Sequence[Row], found: Fitted, low: float, high: float) -> DiscrepancyModel:
    """Return a fit as the predictor reads it."""
    triangle = [tuple(round(float(value), 6) for value in row[: i + 1]) for i, row in enumerate(found.covariance)]
    deviations = {name: round(value, 4) for name, value in found.deviations.items()}
    return DiscrepancyModel(
        means={name: round(float(mean), 4) for name, mean in zip(found.design.names, found.means, strict=True)},
        covariance=tuple(triangle),
        new_framework=deviations["framework"],
        new_tables=deviations["tables"],
        sources={name: round(value, 4) for name, value in _between_sources(found, rows).items()},
        within=deviations["within"],
        host=deviations["host"],
        ordinary=deviations["ordinary"],
        operators=deviations["operators"],
        low=round(low, 3),
        high=round(high, 3),
        runs=tuple(_runs(rows)),
    )


class LeftOut(NamedTuple):
    """A row predicted from all other sources: expected log of measured over modelled time, and its deviation."""

    row: Row
    mean: float
    deviation: float

    @property
    def standardized(self) -> float:
        """Return the error in deviations."""
        return (self.row.miss - self.mean) / self.deviation


def models_without(
    rows: Sequence[Row], start: Fitted, low: float, high: float
) -> Iterator[tuple[str, DiscrepancyModel]]:
    """Yield every source with the model of all others.

    Args:
        rows: of all sources.
        start: the fit to all of them.
        low: end of the interval, in deviations.
        high: its other end.
    """
    sources = by_source(rows)
    for source in sources:
        others = [row for row in rows if row.source != source]
        found = fitted(rows_that_take_part({name: known for name, known in sources.items() if name != source}), start)
        yield source, model_of(others, found, low, high)


def left_out(rows: Sequence[Row], start: Fitted) -> Iterator[LeftOut]:
    """Yield every row with what all other sources tell of it."""
    sources = by_source(rows)
    for source, model in models_without(rows, start, -1.0, 1.0):
        for row in sources[source]:
            deviation = deviation_of(model, row.terms, row.framework, row.host_share, row.operators)
            yield LeftOut(row, model.mean(row.terms), deviation)


def _weights(errors: Sequence[LeftOut]) -> Array:
    """Return weights with which every source counts once."""
    sizes: dict[str, int] = defaultdict(int)
    for each in errors:
        sizes[each.row.source] += 1
    return np.array([1.0 / sizes[each.row.source] for each in errors])


def shortest_interval(errors: Sequence[LeftOut]) -> tuple[float, float]:
    """Return the shortest interval, in deviations, that holds 90 % of the left-out rows, every source counted once.

    Of two that hold as many the shorter one says more; a source that errs wildly lies outside any (chapter 2 of Hyndman
    1996, Computing and graphing highest density regions).
    """
    order = np.argsort([each.standardized for each in errors])
    sizes = np.array([errors[place].standardized for place in order])
    share = np.concatenate([[0.0], np.cumsum(_weights(errors)[order])])
    share /= share[-1]
    best = min(float(sizes[0]), -LEAST_QUANTILE), max(float(sizes[-1]), LEAST_QUANTILE)
    for first, low in enumerate(sizes):
        last = int(np.searchsorted(share, share[first] + COVERED - 1e-9)) - 1
        if last >= len(sizes) or low > 0.0:
            break
        ends = min(float(low), -LEAST_QUANTILE), max(float(sizes[last]), LEAST_QUANTILE)
        best = min(best, ends, key=lambda each: each[1] - each[0])
    return best


def coverage_lines(errors: Sequence[LeftOut], low: float, high: float) -> Iterator[str]:
    """Yield the share of left-out rows inside the interval, of tuned and of ordinary sources, each counted once."""
    inside: dict[bool, dict[str, list[bool]]] = {False: defaultdict(list), True: defaultdict(list)}
    for each in errors:
        inside[each.row.ordinary][each.row.source].append(low <= each.standardized <= high)
    for ordinary, sources in inside.items():
        share = fmean(fmean(own) for own in sources.values())
        kind = "ordinary" if ordinary else "tuned"
        yield f"{kind}: {share:.0%} inside, averaged over {len(sources)} sources left out"


def fit_discrepancy(folder: Path, store: bool, tell: Callable[[str], None]) -> Iterator[str]:
    """Yield the coverage of left-out sources as lines; write the model where it is to be stored.

    Raises:
        FileNotFoundError: the folder has no table.
    """
    warnings.filterwarnings("ignore", module="scipy")
    rows = list(judged_rows(folder))
    tell(f"fitting {len(rows)} steps of {len(by_source(rows))} sources, and again without each")
    found = fitted(rows_that_take_part(by_source(rows)))
    errors = list(left_out(rows, found))
    low, high = shortest_interval(errors)
    yield from coverage_lines(errors, low, high)
    if store:
        content = model_of(rows, found, low, high).model_dump(mode="json")
        write_whole(DATA, HEAD + yaml.safe_dump(content, sort_keys=False, width=120))
        tell(f"wrote {DATA}")
