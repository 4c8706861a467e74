"""Recommenders' steps on published systems, for many models and plans: what must hold whatever was measured."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from predictor.core.base.bundled import REGRESSORS_FOLDER
from predictor.core.costs.collectives import COLLECTIVES
from predictor.core.step.memory import step_memory
from predictor.recommender.hugectr.reading import parse_hugectr
from predictor.recommender.hugectr.to_run import LoadedRecommender, Options, to_run
from predictor.recommender.step import predict_recommender, recommender_parts
from predictor.recommender.workload.keys import KeyDistribution
from predictor.recommender.workload.plan import ShardedTable, Sharding, ShardingPlan, default_plan
from predictor.recommender.workload.run import RecommenderRun
from predictor.recommender.workload.step import recommender_step
from predictor.recommender.workload.traffic import all_traffic, exchange
from tests.unit.recommender_examples import data_layer, dcn, dlrm, embedding_layer

# Tiles and waves make a kernel of a larger shape a little faster at times.
NOISE = 0.03
RANKS = st.sampled_from([1, 2, 4, 8, 16])
EXPONENTS = st.sampled_from([0.0, 0.5, 1.0, 1.2, 3.0])


@st.composite
def contents(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a small DLRM or DCN with slots of any size, hotness and optimizer."""
    content: dict[str, Any] = dlrm() if draw(st.booleans()) else dcn()
    num_slots = content["layers"][0]["sparse"][0]["slot_num"]
    hotness = draw(st.lists(st.sampled_from([1.0, 2.0, 10.5]), min_size=num_slots, max_size=num_slots))
    rows = draw(st.lists(st.integers(1, 2_000_000), min_size=num_slots, max_size=num_slots))
    if content["layers"][0]["slot_size_array"]:
        content["layers"][0] = data_layer("LocalizedSlot", num_slots, tuple(rows))
        kind = "LocalizedSlotSparseEmbeddingHash"
        content["layers"][1] = embedding_layer(kind, 32, slot_size_array=rows)
    content["prediction"] = {"hotness": {"keys": hotness}, "key_exponent": draw(EXPONENTS)}
    kind = draw(st.sampled_from(["SGD", "Adam", "AdaGrad", "MomentumSGD"]))
    content["optimizer"] = {"type": kind, "update_type": draw(st.sampled_from(["Local", "Global"]))}
    return content


@st.composite
def planned(draw: st.DrawFn) -> LoadedRecommender:
    """Draw a run with any plan."""
    gpus = draw(RANKS)
    precision = draw(st.sampled_from(["fp32", "fp16"]))
    loaded = to_run(
        parse_hugectr(draw(contents())), Options(system="Selene", gpus=gpus, precision=precision), REGRESSORS_FOLDER
    )
    every = tuple(range(gpus))
    tables = []
    for item in loaded.run.plan.tables:
        sharding = draw(st.sampled_from(Sharding))
        ranks = every
        if sharding is Sharding.TABLE_WISE:
            ranks = (draw(st.sampled_from(every)),)
        if sharding is Sharding.TABLE_ROW_WISE:
            ranks = tuple(sorted(draw(st.sets(st.sampled_from(every), min_size=1))))
        if sharding is Sharding.COLUMN_WISE:
            ranks = every[: draw(st.sampled_from([part for part in (1, 2, 4) if part <= gpus]))]
        tables.append(ShardedTable(item.table, sharding, ranks))
    plan = ShardingPlan(gpus, tuple(tables))
    plan.check()
    return loaded._replace(run=replace(loaded.run, plan=plan))


def with_default_plan(run: RecommenderRun, num_gpus: int) -> RecommenderRun:
    """Return a run on other ranks, as HugeCTR places its tables."""
    return replace(run, num_gpus=num_gpus, plan=default_plan(run.model.embeddings, num_gpus))


@settings(max_examples=60)
@given(planned())
def test_rows_and_lookups_are_conserved(loaded: LoadedRecommender) -> None:
    run, traffic = loaded.run, all_traffic(loaded.run)
    weights = sum(
        item.table.parameters * (run.num_gpus if item.sharding is Sharding.DATA_PARALLEL else 1)
        for item in run.plan.tables
    )
    held = sum(rank.parameters for rank in traffic)
    assert abs(held - weights) <= 1e-9 * weights
    lookups = sum(
        run.batch_size
        * item.table.lookups_per_sample
        * (len(item.ranks) if item.sharding is Sharding.COLUMN_WISE else 1)
        for item in run.plan.tables
    )
    assert abs(sum(rank.lookups for rank in traffic) - lookups) <= 1e-6 * lookups
    for rank in traffic:
        for group in rank.groups:
            assert group.touched <= min(group.lookups, group.rows * (1 + 1e-9)) + 1e-6


@settings(max_examples=40)
@given(contents(), st.sampled_from([(1, 2), (2, 4), (4, 8), (2, 16)]))
def test_more_ranks_never_look_up_more_each(content: dict[str, Any], numbers: tuple[int, int]) -> None:
    run = to_run(parse_hugectr(content), Options(system="Selene", gpus=1), REGRESSORS_FOLDER).run
    most = [max(rank.lookups for rank in all_traffic(with_default_plan(run, number))) for number in numbers]
    assert most[1] <= most[0] * (1 + 1e-9)


@settings(max_examples=40)
@given(planned())
def test_ranks_exchange_only_where_there_are_several(loaded: LoadedRecommender) -> None:
    (stage,) = recommender_step(loaded.run).stages
    names = {task.operator.name for task, _ in recommender_step(loaded.run).calls(stage)}
    if loaded.run.num_gpus == 1:
        assert not names & COLLECTIVES.keys()
    else:
        assert "all_reduce" in names
        sent = exchange(loaded.run, all_traffic(loaded.run))
        assert ("all_to_all" in names) is bool(sent.keys)


@settings(max_examples=40)
@given(planned())
def test_parts_and_intervals_are_of_one_step(loaded: LoadedRecommender) -> None:
    prediction = predict_recommender(loaded.run, loaded.system)
    parts = recommender_parts(prediction, loaded.system)
    assert abs(parts.step_us - prediction.step.us) <= 1e-9 * prediction.step.us
    assert all(getattr(parts, name) >= -1e-6 for name in parts.__slots__)
    assert prediction.step.low_us < prediction.step.us < prediction.step.high_us


@settings(max_examples=40)
@given(planned())
def test_twice_the_batch_is_never_faster_or_smaller(loaded: LoadedRecommender) -> None:
    run = loaded.run
    double = replace(run, batch_size=2 * run.batch_size)
    once, twice = (predict_recommender(each, loaded.system) for each in (run, double))
    assert twice.step.us >= once.step.us * (1 - NOISE)
    (small,), (large,) = (step_memory(each.tasks) for each in (once, twice))
    assert large.total >= small.total


@settings(max_examples=40)
@given(planned())
def test_overlaps_never_slow_a_step_down(loaded: LoadedRecommender) -> None:
    run = loaded.run
    in_turn = replace(run, overlap_input=False, overlap_embeddings=False, overlap_gradients=False)
    beside, after = (predict_recommender(each, loaded.system).step.us for each in (run, in_turn))
    assert beside <= after * (1 + 1e-9)


@settings(max_examples=30)
@given(planned())
def test_skew_never_touches_more_rows(loaded: LoadedRecommender) -> None:
    def touched(exponent: float) -> float:
        run = replace(loaded.run, keys=KeyDistribution(exponent))
        return sum(group.touched for rank in all_traffic(run) for group in rank.groups)

    assert touched(1.2) <= touched(0.0) * (1 + 1e-6)
