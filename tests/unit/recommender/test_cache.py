"""A cache of hot rows: its hits and its traffic equal what draws of keys show, and formulas at the ends."""

from __future__ import annotations

import itertools
import random
from collections import OrderedDict

import pytest

from predictor.core.base.errors import ConfigError
from predictor.core.costs.host_copy import EFFICIENCY
from predictor.core.hardware.hardware import Links, Quantity
from predictor.recommender.workload.cache import (
    PCIE_4,
    host_link,
    lru_hit_share,
    missed_rows,
    request_cost,
)
from predictor.recommender.workload.embedding import Combiner, EmbeddingKind, EmbeddingLayer
from predictor.recommender.workload.keys import UNIFORM, KeyDistribution
from predictor.recommender.workload.model import Recommender

LONG = KeyDistribution(1.0)
LINK = Quantity(value=10.0, source="test")


def draws(exponent: float, rows: int, number: int) -> list[int]:
    weights = list(itertools.accumulate((key + 1) ** -exponent for key in range(rows)))
    return random.Random(rows).choices(range(rows), cum_weights=weights, k=number)


def recommender(slots: int = 1, rows: int = 100_000, width: int = 16) -> Recommender:
    layer = EmbeddingLayer(
        "embedding", "data", "vectors", EmbeddingKind.LOCALIZED, slots, width, Combiner.SUM, 0, (rows,) * slots,
        (1.0,) * slots,
    )  # fmt: skip
    return Recommender("label", 1, "dense", 13, (layer,), (), None)


@pytest.mark.parametrize(("exponent", "cached"), [(0.0, 100), (1.0, 30), (1.0, 300), (1.2, 100)])
def test_lru_hits_are_those_of_a_simulated_cache(exponent: float, cached: int) -> None:
    rows, number = 1000, 60_000
    cache: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for count, key in enumerate(draws(exponent, rows, number)):
        hit = key in cache
        hits += hit and count >= number // 6
        cache[key] = None
        cache.move_to_end(key)
        if len(cache) > cached:
            cache.popitem(last=False)
    predicted = lru_hit_share(KeyDistribution(exponent), cached, rows)
    assert predicted == pytest.approx(hits / (number - number // 6), abs=0.01)
    assert predicted <= KeyDistribution(exponent).hit_share(cached, rows) + 1e-6, "no policy beats the hottest rows"


@pytest.mark.parametrize("exponent", [0.0, 1.0])
def test_missed_rows_are_those_of_drawn_keys(exponent: float) -> None:
    rows, lookups, cached = 2000, 1500, 200
    cold = [
        len({key for key in draws(exponent, rows, lookups * 40)[i * lookups : (i + 1) * lookups] if key >= cached})
        for i in range(40)
    ]
    assert missed_rows(KeyDistribution(exponent), lookups, cached, rows) == pytest.approx(sum(cold) / 40, rel=0.03)


def test_ends() -> None:
    assert lru_hit_share(LONG, 0, 100) == 0.0
    assert lru_hit_share(LONG, 100, 100) == 1.0
    assert missed_rows(UNIFORM, 10, 100, 100) == 0.0
    assert missed_rows(UNIFORM, 1e9, 0, 100) == pytest.approx(100.0)
    assert request_cost(recommender(), 10, 1.0, LINK, LONG).us == 0.0


def test_traffic_of_a_request_is_its_missing_rows() -> None:
    model = recommender(slots=26)
    cost = request_cost(model, 4096, 0.1, LINK, LONG)
    assert cost.missed_bytes == pytest.approx(cost.missed_rows * 64)
    assert cost.us == pytest.approx(cost.missed_bytes / (10e3 * EFFICIENCY))
    assert cost.cached_bytes == pytest.approx(0.1 * 26 * 100_000 * 64)
    single = request_cost(recommender(), 4096, 0.1, LINK, LONG)
    assert cost.us == pytest.approx(26 * single.us)
    assert cost.hit_share == pytest.approx(single.hit_share)
    costs = [request_cost(model, 4096, share, LINK, LONG).us for share in (0.0, 0.01, 0.1, 0.5, 1.0)]
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] == 0.0
    assert request_cost(model, 4096, 0.0, LINK, LONG).hit_share == 0.0


def test_link_is_the_system_s_or_an_assumption() -> None:
    assert host_link(None) is PCIE_4
    assert PCIE_4.source.startswith("assumption")
    assert Links.model_fields["host_gb_per_s"].default is None


def test_wrong_questions_are_named() -> None:
    with pytest.raises(ConfigError, match=r"the cached share of the rows is 10; expected 0 to 1"):
        request_cost(recommender(), 1, 10, LINK, LONG)
    with pytest.raises(ConfigError, match="0 samples"):
        request_cost(recommender(), 0, 0.1, LINK, LONG)
