"""Tables larger than device memory: what is fetched, kept and written back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from predictor.core.base.errors import ConfigError
from predictor.recommender.hugectr.plan_file import plan_entries
from predictor.recommender.prediction import RecommenderStep, predict_recommender
from predictor.recommender.workload.cache_tasks import hit_rate, missed_bytes
from predictor.recommender.workload.keys import KeyDistribution
from predictor.recommender.workload.memory import embedding_bytes, states_of
from predictor.recommender.workload.plan import ShardedTable, Sharding, ShardingPlan
from predictor.recommender.workload.run import RecommenderRun
from predictor.recommender.workload.step import recommender_step
from predictor.recommender.workload.traffic import all_traffic, exchange
from tests.unit.recommender_examples import SLOTS, dcn, dlrm, loaded


def cached(run: RecommenderRun, share: float, exponent: float = 0.0) -> RecommenderRun:
    return replace(run, cached_share=share, keys=KeyDistribution(exponent))


def test_whole_tables_miss_nothing() -> None:
    run = loaded(dlrm()).run
    assert missed_bytes(run, 0) == 0.0
    assert hit_rate(run) == 1.0


def test_uniform_keys_hit_as_often_as_rows_are_there() -> None:
    run = cached(loaded(dlrm()).run, 0.25)
    assert hit_rate(run) == pytest.approx(0.25)
    # Rank 1 has slots of 3 and 150 keys, all of which a batch of 4,096 names: three quarters of them are missing.
    assert missed_bytes(run, 1) == pytest.approx(0.75 * (3 + 150) * 32 * 4, rel=5e-3)


def test_skewed_keys_hit_more_often() -> None:
    run = loaded(dlrm()).run
    rates = [hit_rate(cached(run, 0.1, exponent)) for exponent in (0.0, 0.8, 1.2)]
    assert rates == sorted(rates)
    assert rates[-1] > 0.6  # less than one of three keys is none
    assert missed_bytes(cached(run, 0.1, 1.2), 0) < missed_bytes(cached(run, 0.1), 0)


def test_states_travel_with_their_rows() -> None:
    sgd, adam = (missed_bytes(cached(loaded(dlrm(optimizer={"type": kind})).run, 0.5), 0) for kind in ("SGD", "Adam"))
    assert adam == pytest.approx(3 * sgd)


def test_update_of_all_rows_fetches_all_that_are_missing() -> None:
    run = cached(loaded(dcn()).run, 0.5)
    assert missed_bytes(run, 0) == pytest.approx(0.5 * 50_000 * 16 * 4 * 3)


def test_missing_rows_come_before_the_lookup_and_leave_after_the_update() -> None:
    (stage,) = recommender_step(cached(loaded(dlrm()).run, 0.1)).stages
    ((block, _),) = stage.chunks[0].blocks
    assert [task.name for task in block.forward.tasks[:3]] == ["key_owners", "host_to_device", "embedding_bag"]
    assert [task.name for task in block.backward.tasks[-2:]] == ["embedding_update", "host_to_device"]
    assert block.forward.tasks[1].shape == block.backward.tasks[-1].shape


def test_cache_takes_its_share_of_memory_and_fetched_rows_theirs() -> None:
    run = loaded(dlrm(), precision="fp32").run
    full, half = (embedding_bytes(cached(run, share), all_traffic(run)[0]) for share in (1.0, 0.5))
    fetched = missed_bytes(cached(run, 0.5), 0)
    assert fetched > 0
    assert full - half == pytest.approx(0.5 * 32 * (SLOTS[0] + SLOTS[2]) * 4 - fetched)


def test_fetched_rows_are_buffered() -> None:
    run = loaded(dlrm(), precision="fp32").run
    traffic = all_traffic(run)
    full, half = (states_of(cached(run, share), traffic[0], exchange(run, traffic)).buffers for share in (1.0, 0.5))
    assert half - full == pytest.approx(missed_bytes(cached(run, 0.5), 0))


def test_update_of_all_rows_needs_room_for_all_of_them() -> None:
    run = loaded(dcn()).run
    full, half = (embedding_bytes(cached(run, share), all_traffic(run)[0]) for share in (1.0, 0.5))
    assert half == pytest.approx(full)


def with_plan(*ways: Sharding) -> RecommenderStep:
    """Return a prediction with a tenth of the rows in device memory, and each table on two GPUs in its way."""
    tables = tuple(
        ShardedTable(sharded.table, way, (0, 1) if way is Sharding.DATA_PARALLEL else (0,))
        for sharded, way in zip(loaded(dlrm(), gpus=2).run.plan.tables, ways, strict=True)
    )
    plan = plan_entries(ShardingPlan(2, tables))
    return predict_recommender(dlrm(prediction={"plan": plan}), system="Selene", gpus=2, cached_share=0.1)


def test_data_parallel_tables_are_not_cached() -> None:
    copies = with_plan(*[Sharding.DATA_PARALLEL] * 4)
    assert copies.run.cached_share == 1.0
    assert any("cached_share 0.1 changes nothing" in said for said in copies.assumptions)
    assert not any("of the lookups" in said for said in copies.assumptions)
    some = with_plan(Sharding.TABLE_WISE, *[Sharding.DATA_PARALLEL] * 3)
    assert some.run.cached_share == 0.1
    assert any("answers 10.0% of the lookups" in said for said in some.assumptions)
    assert any("Data-parallel tables lie whole" in said for said in some.assumptions)


def test_step_says_how_often_the_cache_hits() -> None:
    whole, some = (
        predict_recommender(dlrm(), system="Selene", gpus=8, key_exponent=1.0, cached_share=share)
        for share in (1.0, 0.1)
    )
    assert some.step.us > whole.step.us
    assert any("answers" in said and "% of the lookups" in said for said in some.assumptions)
    assert some.to_dict()["run"]["hit_rate"] == pytest.approx(hit_rate(some.run))
    assert some.parts.step_us == pytest.approx(some.step.us)


@pytest.mark.parametrize("share", [0.0, 1.5, -1.0])
def test_share_out_of_range_is_refused(share: float) -> None:
    with pytest.raises(ConfigError, match="cached_share is"):
        predict_recommender(dlrm(), system="Selene", cached_share=share)
