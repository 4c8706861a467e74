"""Averaging over hypotheses, against the same densities written out with whole covariance matrices in numpy."""

from __future__ import annotations

from math import log

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor.core.hardware.hardware import COMPONENTS
from predictor.evidence.calibration.averaging import KNOWN_AS, SPREADS, Averaged, Row, averaged, left_out
from predictor.evidence.calibration.linear_algebra import dot
from predictor.evidence.calibration.observations import LAYOUT_SPREAD
from predictor.evidence.calibration.priors import Prior

SIZE = len(COMPONENTS)
PRIOR = Prior(own=(0.07, 0.1, 0.12, 0.15, 0.2, 0.25, 0.25), whole=0.1)
OVERLAP = COMPONENTS.index("overlap")
ROWS = [
    Row([0.6, 0.1, 0.2, 0.05, 0.0, 0.05, 0.01], 0.10, 0.03**2),
    Row([0.4, 0.3, 0.2, 0.0, 0.1, 0.0, 0.03], 0.14, 0.01**2),
    Row([0.3, 0.0, 0.3, 0.3, 0.0, 0.1, 0.0], 0.02, 0.02**2),
]


def reference(rows: list[Row]) -> tuple[np.ndarray, np.ndarray, float]:
    """Return mean and covariance of the factors' logs and the share of systematic hypotheses, by normal densities."""
    gradients = np.array([row.gradient for row in rows]).reshape(len(rows), SIZE)
    targets = np.array([row.target for row in rows])
    times = np.ones(SIZE)
    times[OVERLAP] = 0.0
    common = PRIOR.whole**2 * (0.5 * np.outer(times, times) + 0.5 * np.diag(times))
    own = np.diag(np.square(PRIOR.own))
    weights, means, covariances = [], [], []
    for systematic in (True, False):
        for spread in SPREADS:
            prior = common + own if systematic else common
            noise = np.diag([row.variance for row in rows]) + (spread * LAYOUT_SPREAD) ** 2 * np.eye(len(rows))
            if not systematic:
                noise += np.diag(np.diag(gradients @ own @ gradients.T))
            whole = gradients @ prior @ gradients.T + noise
            gain = prior @ gradients.T @ np.linalg.inv(whole)
            evidence = -0.5 * (np.linalg.slogdet(whole)[1] + targets @ np.linalg.solve(whole, targets))
            weights.append(evidence - KNOWN_AS * (log(spread) + 0.5 / spread**2))
            means.append(gain @ targets)
            covariances.append(prior - gain @ gradients @ prior)
    shares = np.exp(np.array(weights) - max(weights))
    shares /= shares.sum()
    mean = shares @ np.array(means)
    apart = np.array(means) - mean
    covariance = np.einsum("k,kij->ij", shares, covariances) + np.einsum("k,ki,kj->ij", shares, apart, apart)
    return mean, covariance, float(shares[: len(SPREADS)].sum())


def test_factors_are_those_of_the_whole_covariance() -> None:
    found = averaged(ROWS, PRIOR)
    mean, covariance, systematic = reference(ROWS)
    assert found.logs == pytest.approx(mean, abs=1e-12)
    assert np.array(found.covariance) == pytest.approx(covariance, abs=1e-12)
    assert found.systematic == pytest.approx(systematic)


@pytest.mark.parametrize("position", range(len(ROWS)))
def test_leaving_a_row_out_is_averaging_the_others(position: int) -> None:
    others = [row for i, row in enumerate(ROWS) if i != position]
    without = list(left_out(ROWS, averaged(ROWS, PRIOR).posteriors))
    assert without[position] == pytest.approx(averaged(others, PRIOR).logs, abs=1e-12)


def _of_one_kind(targets: list[float]) -> Averaged:
    return averaged([Row(ROWS[0].gradient, target, 0.01**2) for target in targets], PRIOR)


@given(st.floats(0.05, 0.2), st.floats(2.0, 4.0))
def test_runs_that_differ_move_less_than_runs_that_agree(common: float, times: float) -> None:
    agree = _of_one_kind([common] * 3)
    differ = _of_one_kind([common, common * (1.0 + times), common * (1.0 - times)])
    moved = [dot(ROWS[0].gradient, each.logs) for each in (differ, agree)]
    assert 0.0 < moved[0] < moved[1] < common
    assert differ.spread > agree.spread
    assert differ.systematic < agree.systematic


def test_opposite_errors_move_nothing_in_common() -> None:
    found = _of_one_kind([0.3, -0.3, 0.01])
    assert all(abs(value) < 0.01 for value in found.logs)


def test_the_order_of_rows_does_not_count() -> None:
    assert averaged(ROWS[::-1], PRIOR).logs == pytest.approx(averaged(ROWS, PRIOR).logs, abs=1e-12)


def test_a_prior_holds_the_error_as_a_whole_once() -> None:
    whole = np.array(PRIOR.covariance(systematic=True))
    assert np.sqrt(np.diag(whole)) == pytest.approx(PRIOR.deviations)
    assert whole[0, 0] == pytest.approx(PRIOR.own[0] ** 2 + PRIOR.whole**2)
    assert whole[0, 1] == pytest.approx(PRIOR.whole**2 / 2.0)
    assert whole[OVERLAP, 0] == 0.0
    assert whole[OVERLAP, OVERLAP] == pytest.approx(PRIOR.own[OVERLAP] ** 2)
