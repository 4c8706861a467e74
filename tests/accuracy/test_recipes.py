"""Published recipes beside the search's winner: which are compared, and how far behind they may be."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.accuracy.groups import Judged, judge
from tests.accuracy.recipes import HEAD, TUNED_BY_MAKERS, compared, published_recipes, recipe_table


@pytest.fixture(scope="module")
def judged(truth: Path) -> Judged:
    return judge(truth)


def test_a_job_has_one_recipe_which_was_measured_fastest(judged: Judged) -> None:
    recipes = published_recipes(judged.rows)
    assert recipes
    assert all(row.compared.step.config["training"]["framework"] in TUNED_BY_MAKERS for row in recipes)
    assert not any(row.compared.step.ordinary for row in recipes)
    assert published_recipes(recipes) == recipes
    first = recipes[0].compared
    slower = replace(recipes[0], compared=replace(first, step=replace(first.step, seconds=2 * first.step.seconds)))
    assert published_recipes([slower, recipes[0]]) == published_recipes([recipes[0], slower]) == [recipes[0]]


def test_a_recipe_is_no_faster_than_the_winner_and_counts_in_its_kind(judged: Judged) -> None:
    recipes = published_recipes(judged.rows)
    row = next(row for row in recipes if row.compared.step.num_gpus <= 16)
    found = compared(row)
    assert found is not None
    assert found.slower >= 0.0
    assert found.memory_gib is None or found.winner_gib <= found.memory_gib
    (line,) = recipe_table([row]).rows
    assert len(line) == len(HEAD)
    assert line[:2] == ["experts" if found.has_experts else "dense", "1"]
