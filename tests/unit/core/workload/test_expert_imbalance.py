"""The prior of natural routing: even where nothing can be busier, wider where ranks hold fewer experts."""

from __future__ import annotations

from random import Random
from statistics import mean

import pytest

from predictor.core.workload.architecture import MixtureOfExperts
from predictor.core.workload.expert_exchange import EVEN, SPREAD, expected_largest, prior_imbalance
from predictor.core.workload.layout import Layout


def layout(ranks: int) -> Layout:
    return Layout(1, 1, ranks, gpus_per_node=8, expert_parallel_size=ranks)


def test_nothing_is_busier_than_the_only_rank_or_a_capacity() -> None:
    assert prior_imbalance(MixtureOfExperts(64, 8, 768), layout(1)) == EVEN
    assert prior_imbalance(MixtureOfExperts(64, 8, 768, capacity_factor=1.25), layout(8)) == EVEN


@pytest.mark.parametrize(("experts", "ranks"), [(128, 8), (64, 64), (256, 32), (8, 2)])
def test_the_prior_is_the_mean_of_drawn_loads(experts: int, ranks: int) -> None:
    random, held = Random(7), experts // ranks
    drawn = [max(mean(random.gauss(1.0, SPREAD) for _ in range(held)) for _ in range(ranks)) for _ in range(4000)]
    prior = prior_imbalance(MixtureOfExperts(experts, 2, 768), layout(ranks))
    assert prior.value == pytest.approx(mean(drawn), rel=0.02)
    assert 1.0 < prior.low < prior.value < prior.high <= ranks


def test_fewer_experts_on_a_rank_even_out_less() -> None:
    values = [prior_imbalance(MixtureOfExperts(256, 8, 768), layout(ranks)).value for ranks in (2, 8, 32, 128)]
    assert values == sorted(values)


def test_the_largest_of_one_is_the_mean() -> None:
    assert expected_largest(1) == 0.0
