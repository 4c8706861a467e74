"""Three runs of a published group calibrate its others: half of the error where runs are alike, no loss where not."""

from __future__ import annotations

from statistics import fmean, median

import pytest

from tests.accuracy.calibrated_groups import Draw, Published, draws, published_steps
from tests.conftest import SHARED

TRUTH = SHARED / "truth"
FEW, MANY = 12, 40  # threes of a group: runs that are unlike differ from draw to draw
ALIKE = ("Korthikanti 2022", "SimuMax B200, dense", "torchao")
UNLIKE = ("Narayanan 2021", "InternEvo", "Vocabulary-parallel fork, A100")
pytestmark = pytest.mark.skipif(not TRUTH.is_dir(), reason="no tables of published steps")


@pytest.fixture(scope="module")
def steps() -> dict[str, list[Published]]:
    return published_steps(TRUTH, {*ALIKE, *UNLIKE})


def ratio(drawn: list[Draw]) -> float:
    return median(each.after / each.before for each in drawn)


@pytest.mark.parametrize("group", ALIKE)
def test_runs_that_are_alike_halve_the_error_of_the_others(steps: dict[str, list[Published]], group: str) -> None:
    drawn = draws(steps[group], FEW)
    assert ratio(drawn) < 0.6
    assert fmean(each.inside for each in drawn) > 0.8


@pytest.mark.parametrize("group", UNLIKE)
def test_runs_that_are_unlike_do_not_worsen_the_others(steps: dict[str, list[Published]], group: str) -> None:
    drawn = draws(steps[group], MANY)
    assert ratio(drawn) < 1.05
    assert max(each.after / each.before for each in drawn) < 2.5
    assert fmean(each.inside for each in drawn) > 0.8
