"""The sharding plan of a session."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hugectr.exceptions import HugeCtrError
from predictor.core.base.errors import ConfigError, MissingKeyError
from predictor.recommender.hugectr.plan_file import read_plan
from predictor.recommender.workload.model import Recommender
from predictor.recommender.workload.plan import ShardedTable, Sharding, ShardingPlan, default_plan


def plan_of(model: Recommender, num_ranks: int, plan_file: str) -> ShardingPlan:
    """Return HugeCTR's placement, or the plan of a file.

    Raises:
        HugeCtrError: the file is missing, does not fit the model or the ranks, or has a placement that cannot be run.
    """
    if not plan_file:
        return default_plan(model.embeddings, num_ranks)
    try:
        return runnable(read_plan(Path(plan_file), model.embeddings, num_ranks))
    except (FileNotFoundError, ConfigError, MissingKeyError) as error:
        raise HugeCtrError(str(error)) from None


def runnable(plan: ShardingPlan) -> ShardingPlan:
    """Return a plan as the trainer places it: rows over one node that has all ranks are rows over all ranks.

    Raises:
        ConfigError: rows of a table lie on some of the ranks.
    """
    return replace(plan, tables=tuple(_placed(sharded, plan.num_ranks) for sharded in plan.tables))


def _placed(sharded: ShardedTable, num_ranks: int) -> ShardedTable:
    if sharded.sharding is not Sharding.TABLE_ROW_WISE:
        return sharded
    if len(sharded.ranks) < num_ranks:
        raise ConfigError(
            f"plan of {sharded.table.name}: table_row_wise on ranks {list(sharded.ranks)} of {num_ranks} can be "
            "predicted, not trained; name all ranks, or use row_wise, table_wise or column_wise"
        )
    return replace(sharded, sharding=Sharding.ROW_WISE)
