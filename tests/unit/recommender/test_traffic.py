"""What each rank looks up and sends, against numbers counted by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from predictor.recommender.workload.keys import KeyDistribution
from predictor.recommender.workload.plan import ShardedTable, Sharding, ShardingPlan
from predictor.recommender.workload.run import RecommenderRun
from predictor.recommender.workload.traffic import all_traffic, exchange, rank_traffic
from tests.unit.recommender_examples import SLOTS, dcn, dlrm, loaded

BATCH = 4096


def sharded(run: RecommenderRun, *ways: Sharding) -> RecommenderRun:
    """Return a run whose tables lie in these ways, in turn; those on one rank on rank 0."""
    every = tuple(range(run.num_gpus))
    tables = [
        ShardedTable(item.table, way, (0,) if way is Sharding.TABLE_WISE else every)
        for item, way in zip(run.plan.tables, ways, strict=True)
    ]
    return replace(run, plan=ShardingPlan(run.num_gpus, tuple(tables)))


def test_default_plan_lays_slots_in_turn() -> None:
    first, second = all_traffic(loaded(dlrm()).run)
    assert (first.lookups, second.lookups) == (2 * BATCH, 2 * BATCH)
    assert (first.parameters, second.parameters) == (32 * (SLOTS[0] + SLOTS[2]), 32 * (SLOTS[1] + SLOTS[3]))
    assert first.pooled == 2 * BATCH * 32


def test_two_tables_in_one_group_are_added() -> None:
    (group,) = rank_traffic(loaded(dlrm()).run, 0).groups
    assert (group.tables, group.bags, group.width) == (2, 2 * BATCH, 32)


def test_touched_rows_are_never_more_than_rows_or_lookups() -> None:
    (group,) = rank_traffic(loaded(dlrm()).run, 1).groups
    assert group.touched == pytest.approx(3 + 150, rel=1e-6)  # 4096 draws leave none of so few keys out


def test_skewed_keys_touch_fewer_rows() -> None:
    run = loaded(dlrm()).run
    skewed = replace(run, keys=KeyDistribution(1.0))
    assert rank_traffic(skewed, 0).groups[0].touched < 0.6 * rank_traffic(run, 0).groups[0].touched


def test_row_wise_splits_lookups_and_keeps_bags() -> None:
    run = loaded(dcn()).run
    for rank in all_traffic(run):
        (group,) = rank.groups
        assert group.sharding is Sharding.ROW_WISE
        assert group.lookups == pytest.approx(8 * BATCH / 2)
        assert group.bags == 8 * BATCH
        assert group.rows == 50_000
        assert rank.pooled == 0.0


def test_hottest_key_lies_on_one_rank_of_a_row_wise_table() -> None:
    run = replace(loaded(dcn(), gpus=2).run, keys=KeyDistribution(5.0))
    lookups = [rank.lookups for rank in all_traffic(run)]
    assert sum(lookups) == pytest.approx(8 * BATCH)
    # Eight slots of 12,500 keys each begin on rank 0; of the sum of k^-5 the odd k have 1 - 2^-5.
    assert lookups[0] / sum(lookups) == pytest.approx(1 - 2**-5, abs=2e-3)


def test_column_wise_reads_every_key_on_every_rank() -> None:
    run = sharded(loaded(dlrm()).run, *[Sharding.COLUMN_WISE] * 4)
    for rank in all_traffic(run):
        (group,) = rank.groups
        assert (group.width, group.lookups, group.bags) == (16, 4 * BATCH, 4 * BATCH)
    sent = exchange(run, all_traffic(run))
    assert sent.pooled == 4 * BATCH * 16
    assert sent.keys == 4 * BATCH  # two copies of half the batch's keys leave


def test_data_parallel_looks_up_its_own_samples() -> None:
    run = sharded(loaded(dlrm()).run, *[Sharding.DATA_PARALLEL] * 4)
    for rank in all_traffic(run):
        assert rank.lookups == 4 * BATCH / 2
        assert rank.keys == 0
    sent = exchange(run, all_traffic(run))
    assert (sent.pooled, sent.partial, sent.keys) == (0.0, 0.0, 0.0)
    assert sent.replicated == 32 * sum(SLOTS)


def test_rank_that_sends_most_decides_the_exchange() -> None:
    run = sharded(loaded(dlrm()).run, *[Sharding.TABLE_WISE] * 4)
    traffic = all_traffic(run)
    assert traffic[1].groups == ()
    sent = exchange(run, traffic)
    assert sent.pooled == 4 * BATCH * 32  # of rank 0; either rank receives half of it
    assert sent.keys == 4 * BATCH


def test_row_wise_sums_are_scattered() -> None:
    run = sharded(loaded(dlrm()).run, *[Sharding.ROW_WISE] * 4)
    sent = exchange(run, all_traffic(run))
    assert (sent.pooled, sent.partial) == (0.0, 4 * BATCH / 2 * 32)
    assert sent.features == 8


def test_hotness_of_the_prediction_clause_counts() -> None:
    run = loaded(dlrm(prediction={"hotness": {"keys": [2, 1, 30, 1]}})).run
    assert rank_traffic(run, 0).lookups == 32 * BATCH
    assert rank_traffic(run, 0).groups[0].bags == 2 * BATCH


@pytest.mark.parametrize("hotness", [2.0, 20.0])
def test_keys_that_follow_from_the_first_touch_as_many_rows_per_first_key(hotness: float) -> None:
    drawn, follow = KeyDistribution(1.2), KeyDistribution(1.2, follow=True)
    rows, samples = 1e7, 4096.0
    first = drawn.distinct(samples, rows)
    assert follow.touched(samples, 1.0, rows) == first
    assert follow.touched(samples, hotness, rows) == pytest.approx(hotness * first, rel=0.01)
    assert drawn.touched(samples, hotness, rows) < follow.touched(samples, hotness, rows)
    assert follow.touched(samples, hotness, 50.0) <= 50.0


def test_rows_over_some_ranks_are_looked_up_there_alone_and_sent_from_each() -> None:
    run = loaded(dlrm(), gpus=4).run
    first, *others = run.plan.tables
    split = replace(first, sharding=Sharding.TABLE_ROW_WISE, ranks=(1, 3))
    shared = replace(run, plan=replace(run.plan, tables=(split, *others)))
    shared.plan.check()
    before, after = all_traffic(run), all_traffic(shared)
    assert sum(rank.lookups for rank in after) == pytest.approx(sum(rank.lookups for rank in before))
    assert sum(rank.parameters for rank in after) == pytest.approx(sum(rank.parameters for rank in before))
    extra = run.batch_size * first.table.width
    assert sum(rank.pooled for rank in after) == pytest.approx(sum(rank.pooled for rank in before) + extra)
