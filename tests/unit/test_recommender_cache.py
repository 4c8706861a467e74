"""A cache of hot rows: its hits and its traffic equal what draws of keys show, and formulas at the ends."""

from __future__ import annotations

import itertools
import random
from collections import OrderedDict
from dataclasses import replace

import pytest

from predictor.base.errors import ConfigError
from predictor.costs.hardware import Links, Quantity
from predictor.costs.host_copy import EFFICIENCY
from predictor.workloads.recommender.cache import (
    PCIE_4,
    host_link,
    lru_hit_share,
    missed_rows,
    request_cost,
    shard,
    share_for_hits,
    step_cost,
)
from predictor.workloads.recommender.embedding import Combiner, EmbeddingKind, EmbeddingLayer
from predictor.workloads.recommender.keys import UNIFORM, KeyDistribution
from predictor.workloads.recommender.model import Recommender
from predictor.workloads.recommender.optimizer import Optimizer, OptimizerKind, Schedule
from predictor.workloads.recommender.plan import ShardedTable, Sharding, ShardingPlan, default_plan
from predictor.workloads.recommender.run import RecommenderRun

LONG = KeyDistribution(1.0)
SGD = Optimizer(OptimizerKind.SGD, Schedule(0.1))
ADAM = Optimizer(OptimizerKind.ADAM, Schedule(0.1))
LINK = Quantity(value=10.0, source="test")


def draws(exponent: float, rows: int, number: int) -> list[int]:
    weights = list(itertools.accumulate((key + 1) ** -exponent for key in range(rows)))
    return random.Random(rows).choices(range(rows), cum_weights=weights, k=number)


def recommender(optimizer: Optimizer | None = SGD, slots: int = 1, rows: int = 100_000, width: int = 16) -> Recommender:
    layer = EmbeddingLayer(
        "embedding", "data", "vectors", EmbeddingKind.LOCALIZED, slots, width, Combiner.SUM, 0, (rows,) * slots,
        (1.0,) * slots,
    )  # fmt: skip
    return Recommender("label", 1, "dense", 13, (layer,), (), optimizer)


def run(model: Recommender, num_gpus: int = 1, batch_size: int = 1000, keys: KeyDistribution = LONG) -> RecommenderRun:
    plan = default_plan(model.embeddings, num_gpus)
    return RecommenderRun(model, plan, batch_size, num_gpus, num_gpus, "fp32", keys=keys)


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
    assert step_cost(run(recommender()), 1.0, LINK).us == 0.0


@pytest.mark.parametrize("hits", [0.5, 0.9, 0.99])
def test_share_for_hits_is_the_inverse(hits: float) -> None:
    assert LONG.hit_share(share_for_hits(LONG, hits, 1e6) * 1e6, 1e6) == pytest.approx(hits, abs=1e-3)
    assert share_for_hits(UNIFORM, hits, 1e6) == pytest.approx(hits)


def test_traffic_of_a_step_is_rows_and_states_both_ways() -> None:
    plain, adam = (step_cost(run(recommender(optimizer)), 0.1, LINK) for optimizer in (SGD, ADAM))
    assert plain.bytes_in == plain.bytes_out == pytest.approx(plain.missed_rows * 16 * 4)
    assert plain.us == pytest.approx(plain.bytes_in / (10e3 * EFFICIENCY))
    assert adam.bytes_in == pytest.approx(3 * plain.bytes_in)
    assert adam.hit_share == plain.hit_share
    assert adam.cached_bytes == pytest.approx(3 * 0.1 * 100_000 * 16 * 4)


def test_traffic_of_a_request_is_rows_one_way() -> None:
    model = recommender(None, slots=26)
    cost = request_cost(model, 4096, 0.1, LINK, LONG)
    assert cost.bytes_out == 0.0
    assert cost.bytes_in == pytest.approx(cost.missed_rows * 64)
    single = request_cost(recommender(None), 4096, 0.1, LINK, LONG)
    assert cost.us == pytest.approx(26 * single.us)
    assert cost.hit_share == pytest.approx(single.hit_share)
    costs = [request_cost(model, 4096, share, LINK, LONG).us for share in (0.0, 0.01, 0.1, 0.5, 1.0)]
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] == 0.0
    assert request_cost(model, 4096, 0.0, LINK, LONG).hit_share == 0.0


def test_a_rank_s_part_of_a_table_follows_the_plan() -> None:
    model = recommender(width=16)
    (table,) = model.embeddings[0].tables(4)
    ranks = (0, 1, 2, 3)
    assert shard(ShardedTable(table, Sharding.ROW_WISE, ranks), 4, 1000) == (25_000.0, 16, 250.0)
    assert shard(ShardedTable(table, Sharding.COLUMN_WISE, ranks), 4, 1000) == (100_000, 4, 1000.0)
    assert shard(ShardedTable(table, Sharding.TABLE_WISE, (2,)), 4, 1000) == (100_000, 16, 1000.0)
    assert shard(ShardedTable(table, Sharding.DATA_PARALLEL, ranks), 4, 1000) == (100_000, 16, 1000.0)


def test_the_fullest_rank_counts() -> None:
    three = run(recommender(slots=3), num_gpus=2)
    alone = step_cost(run(recommender(slots=1)), 0.1, LINK)
    assert step_cost(three, 0.1, LINK).us == pytest.approx(2 * alone.us), "two of three tables on rank 0"
    empty = replace(three, plan=ShardingPlan(2, ()))
    assert step_cost(empty, 0.1, LINK).us == 0.0


def test_link_is_the_system_s_or_an_assumption() -> None:
    assert host_link(None) is PCIE_4
    assert PCIE_4.source.startswith("assumption")
    assert Links.model_fields["host_gb_per_s"].default is None


def test_wrong_questions_are_named() -> None:
    with pytest.raises(ConfigError, match=r"the cached share of the rows is 10; expected 0 to 1"):
        step_cost(run(recommender()), 10, LINK)
    with pytest.raises(ConfigError, match="optimizer is missing"):
        step_cost(run(recommender(None)), 0.1, LINK)
    with pytest.raises(ConfigError, match="0 samples"):
        request_cost(recommender(), 0, 0.1, LINK, LONG)
