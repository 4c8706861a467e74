"""Where one's own layout stands: the same as in a ranking of all layouts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from predictor.core.plan.loading import Loaded, prepare
from predictor.core.step.memory_verdict import MemoryVerdict
from predictor.core.step.prediction import predict
from predictor.layout_search.answer import search
from predictor.layout_search.own_layout import LayoutRank, layout_rank
from predictor.layout_search.question import SearchProblem, problem_around
from predictor.layout_search.rank import rank
from predictor.layout_search.report.layouts import ordinal, rank_words
from tests.unit.examples import full_form


def loaded_run(**parallelism: Any) -> Loaded:
    return prepare(full_form(parallelism={"data_parallel_size": 4, **parallelism}), Path.cwd())


def placed(loaded: Loaded) -> tuple[LayoutRank, SearchProblem]:
    problem = problem_around(loaded)
    step_us = predict(loaded.run, loaded.system).modelled_us
    first = search(problem, 1).ranking.best[0].step_us
    return layout_rank(problem, loaded.run, step_us, first), problem


@pytest.mark.parametrize("zero_stage", [0, 1, 3])
def test_a_layout_of_the_search_has_its_place_in_the_ranking(zero_stage: int) -> None:
    own, problem = placed(loaded_run(zero_stage=zero_stage))
    everything = rank(problem.space, problem.system, problem.memory_gib, 100_000)
    assert everything.fitting == own.others + 1
    faster = [ranked for ranked in everything.best if ranked.step_us < own.step_us * (1 - 1e-9)]
    assert own.rank == len(faster) + 1
    assert own.slower == pytest.approx(own.step_us / everything.best[0].step_us - 1.0)
    assert own.rank > 1


def test_the_fastest_layout_is_the_first() -> None:
    loaded = loaded_run()
    problem = problem_around(loaded)
    winner = search(problem, 1).ranking.best[0]
    run = problem.space.run(winner.plan)
    own = layout_rank(problem, run, winner.step_us, winner.step_us)
    assert (own.rank, own.slower) == (1, 0.0)


def test_a_layout_that_no_search_has_stands_beside_all_of_them() -> None:
    loaded = loaded_run()
    inside, problem = placed(loaded)
    other = replace(loaded.run, recompute_every=2)
    assert layout_rank(problem, other, inside.step_us, inside.fastest_us).others == inside.others + 1


def test_words_name_place_distance_and_doubt() -> None:
    own = LayoutRank(step_us=1.08, faster=11, others=339, fastest_us=1.0)
    assert rank_words(own, MemoryVerdict.FITS) == "Your layout is 12th of 340, 8.0% slower than the fastest."
    assert rank_words(own, MemoryVerdict.MAY_NOT_FIT).startswith("Your layout is 12th of 340, if it fits, 8.0%")
    assert rank_words(own, MemoryVerdict.DOES_NOT_FIT) == "Your layout does not fit; 11 of the 339 that fit are faster."
    assert rank_words(LayoutRank(1.0, 0, 339, 1.0), None) == "Your layout is the fastest of 340."
    places = [ordinal(number) for number in (1, 2, 3, 4, 11, 22, 113, 1003)]
    assert places == ["1st", "2nd", "3rd", "4th", "11th", "22nd", "113th", "1,003rd"]
