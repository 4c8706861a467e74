"""The fit of measured over modelled time: what it recovers, what one source moves, what a left-out one does not."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

import numpy as np
import pytest

from fitting.discrepancy import LeftOut, fitted, left_out, model_of, shortest_interval
from fitting.published_rows import Row, by_source
from predictor.core.step.discrepancy import ALL, FRAMEWORK, ORDINARY
from predictor.core.workload.software import Framework

NEMO, TITAN = Framework.NEMO, Framework.TORCHTITAN


def rows_of(
    source: str, mean: float, count: int = 12, framework: Framework = NEMO, ordinary: bool = False, seed: int = 1
) -> list[Row]:
    """Return rows of one source, 3 % apart."""
    draws = np.random.default_rng(seed).normal(mean, 0.03, count)
    terms = (ALL, *((ORDINARY,) if ordinary else ()), f"{FRAMEWORK}{framework}", "tables Hopper")
    return [
        Row(source, ordinary, framework, terms, ("group",), f"{source} {i}", float(miss), 0.0, 0.02, 8 * (i + 1))
        for i, miss in enumerate(draws)
    ]


def many(extra: Sequence[Row] = ()) -> list[Row]:
    """Return six tuned sources around 2 %, and two of ordinary runs around 30 %."""
    means = (0.0, 0.01, 0.02, 0.03, 0.04, 0.02)
    rows = [row for i, mean in enumerate(means) for row in rows_of(f"tuned {i}", mean, seed=i)]
    rows += [row for i in range(2) for row in rows_of(f"users {i}", 0.3, ordinary=True, seed=10 + i)]
    return [*rows, *extra]


def test_terms_are_recovered_and_drawn_towards_zero() -> None:
    rows = many()
    model = model_of(rows, fitted([*rows]), -1.6, 1.6)
    tuned, users = rows[0].terms, rows[-1].terms
    assert model.mean(tuned) == pytest.approx(0.02, abs=0.02)
    assert 0.2 < model.mean(users) < 0.31
    assert model.within == pytest.approx(0.03, abs=0.015)
    assert model.sources[NEMO] < 0.08
    runs = {(each.framework, each.ordinary): each for each in model.runs}
    assert runs[NEMO, False].sources == 6
    assert runs[None, True].rows == 24
    assert runs[NEMO, True].mean_log == pytest.approx(0.3, abs=0.02)


def test_a_source_that_errs_wildly_moves_the_others_little_and_is_not_forgotten() -> None:
    usual, odd = many(), many(rows_of("odd", 0.8))
    before, after = (model_of(rows, fitted(rows), -1.6, 1.6) for rows in (usual, odd))
    terms = usual[0].terms
    assert after.mean(terms) - before.mean(terms) < 0.05
    assert after.sources["other"] > before.sources["other"]


def test_rows_of_one_configuration_count_once_and_a_large_source_as_forty() -> None:
    row = rows_of("a", 0.1, 2)
    repeated = [row[0]] * 9 + [row[1]]
    assert [len(own) for own in by_source(repeated).values()] == [2]
    assert by_source(repeated)["a"][0].miss == pytest.approx(row[0].miss)


def test_a_left_out_source_tells_nothing_of_itself() -> None:
    def told(mean: float) -> list[LeftOut]:
        rows = many(rows_of("new", mean, framework=TITAN, seed=99))
        start = fitted(many())
        return [each for each in left_out(rows, start) if each.row.source == "new"]

    near, far = told(0.0), told(0.6)
    assert [each.mean for each in near] == [each.mean for each in far]
    assert [each.deviation for each in near] == [each.deviation for each in far]
    assert fmean(each.standardized for each in far) > fmean(each.standardized for each in near) + 3.0


def _errors(sizes: Sequence[float], source: str) -> list[LeftOut]:
    row = rows_of(source, 0.0, 1)[0]
    return [LeftOut(row._replace(miss=size), 0.0, 1.0) for size in sizes]


def test_the_interval_is_the_shortest_that_holds_nine_tenths_of_the_sources() -> None:
    spread = np.linspace(-2.0, 2.0, 401)
    low, high = shortest_interval(_errors([float(size) for size in spread], "a"))
    assert high - low == pytest.approx(3.6, abs=0.02)
    # One of twenty sources errs by nine deviations: its many rows count as one source, and the interval leaves it out.
    sources = [each for i in range(19) for each in _errors([-1.5, 0.0, 1.5], str(i))]
    assert shortest_interval([*sources, *_errors([9.0] * 500, "odd")]) == (-1.5, 1.5)
    assert shortest_interval(_errors([0.01, 0.0, -0.01] * 10, "sure")) == (-1.0, 1.0)
