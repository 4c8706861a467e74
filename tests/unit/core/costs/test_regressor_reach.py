"""How far outside what was measured a call lies, and what that does to its interval."""

from __future__ import annotations

import pytest

from predictor.core.base.bundled import REGRESSORS_FOLDER
from predictor.core.costs.catalogue import catalogue
from predictor.core.costs.operator import Direction
from predictor.core.costs.published import PublishedSystem, open_system

ADAM = catalogue()["optimizer_step"]
PARAMETERS = 1_000_000_000


@pytest.fixture(scope="module")
def perlmutter() -> PublishedSystem:
    return open_system(REGRESSORS_FOLDER / "Perlmutter", "fp16")


def width(system: PublishedSystem, parameters: int, tensors: int) -> float:
    cost = system.cost(ADAM, Direction.FORWARD, (parameters, tensors))
    return cost.high_us / cost.low_us


def test_a_flat_buffer_is_as_far_outside_as_its_missing_tensors_change_the_time(perlmutter: PublishedSystem) -> None:
    measured, flat = width(perlmutter, PARAMETERS, 60), width(perlmutter, PARAMETERS, 1)
    assert measured < flat < 1.2, "59 tensors fewer save a tenth of the time at most"


def test_tensors_that_decide_the_time_are_far_outside(perlmutter: PublishedSystem) -> None:
    assert width(perlmutter, PARAMETERS, 20_000) > 1.5 * width(perlmutter, PARAMETERS, 1)


def test_bytes_beyond_the_measured_ones_widen_a_flat_buffer_too(perlmutter: PublishedSystem) -> None:
    assert width(perlmutter, 100 * PARAMETERS, 1) > 1.5 * width(perlmutter, PARAMETERS, 1)
