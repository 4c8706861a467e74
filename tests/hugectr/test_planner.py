"""TorchRec's own sharding planner beside the search: both plans are timed by the same predictions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints, Topology
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation

from predictor.recommender.plans import search_plans
from predictor.recommender.step import predict_recommender
from predictor.recommender.workload.plan import ShardedTable, Sharding, ShardingPlan
from predictor.recommender.workload.run import RecommenderRun

MODELS = Path(__file__).resolve().parents[1] / "accuracy" / "recommenders"
GPUS, HBM_GIB, HBM_GB_PER_S, LINK_GB_PER_S = 8, 79.6, 3350.0, 450.0  # H100's data sheet
GB, GIB = 1e9, 2**30


def torchrec_plan(run: RecommenderRun) -> ShardingPlan:
    """Return what TorchRec's planner does with the tables of a run on eight H100."""
    tables = [entry.table for entry in run.plan.tables]
    configs = [
        EmbeddingBagConfig(
            name=f"table{number}",
            embedding_dim=table.width,
            num_embeddings=table.rows,
            feature_names=[f"feature{number}"],
        )
        for number, table in enumerate(tables)
    ]
    constraints = {
        f"table{number}": ParameterConstraints(pooling_factors=list(table.hotness), min_partition=32)
        for number, table in enumerate(tables)
    }
    planner = EmbeddingShardingPlanner(
        topology=Topology(
            world_size=GPUS,
            compute_device="cuda",
            hbm_cap=int(HBM_GIB * GIB),
            hbm_mem_bw=HBM_GB_PER_S * GB / 1e3,  # per millisecond
            intra_host_bw=LINK_GB_PER_S * GB / 1e3,
            local_world_size=GPUS,
        ),
        batch_size=run.batch_per_gpu,
        constraints=constraints,
        debug=False,
        storage_reservation=FixedPercentageStorageReservation(percentage=0.05),
    )
    module = EmbeddingBagCollection(tables=configs, device=torch.device("meta"))
    planned: dict[str, Any] = planner.plan(module, [EmbeddingBagCollectionSharder()]).plan
    (by_table,) = planned.values()
    return ShardingPlan(GPUS, tuple(_entry(entry, by_table[f"table{n}"]) for n, entry in enumerate(run.plan.tables)))


def _entry(entry: ShardedTable, given: Any) -> ShardedTable:
    kind = str(given.sharding_type)
    if kind == "table_column_wise":
        kind = "column_wise"
    sharding = Sharding(kind)
    ranks = tuple(given.ranks) if sharding is not Sharding.DATA_PARALLEL else tuple(range(GPUS))
    if sharding is Sharding.COLUMN_WISE and len(ranks) == 1:
        sharding = Sharding.TABLE_WISE
    return replace(entry, sharding=sharding, ranks=ranks)


@pytest.mark.parametrize("batch_size", [8_192, 55_296])
def test_the_search_is_no_slower_than_the_planner_of_torchrec(batch_size: int) -> None:
    result = search_plans(MODELS / "dlrm_dcnv2.json", gpus=GPUS, system="H100", batch_size=batch_size)
    run, system = result.details.run, result.details.system
    planned = torchrec_plan(run)
    planned.check()
    theirs = predict_recommender(replace(run, plan=planned), system).step.us
    ours = result.steps[0].us
    print(
        f"batch {batch_size:,}: TorchRec's planner {theirs / 1e3:.3f} ms, search {ours / 1e3:.3f} ms, "
        f"{1 - ours / theirs:.1%} less"
    )
    assert ours <= theirs
