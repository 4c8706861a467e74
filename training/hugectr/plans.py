"""The sharding plan of a session."""

from __future__ import annotations

from pathlib import Path

from hugectr.exceptions import HugeCtrError
from predictor.base.errors import ConfigError, MissingKeyError
from predictor.configuration.hugectr.plan_file import read_plan
from predictor.workloads.recommender.model import Recommender
from predictor.workloads.recommender.plan import ShardingPlan, default_plan


def plan_of(model: Recommender, num_ranks: int, plan_file: str) -> ShardingPlan:
    """Return HugeCTR's placement, or the plan of a file.

    Raises:
        HugeCtrError: the file is missing or does not fit the model or the ranks.
    """
    if not plan_file:
        return default_plan(model.embeddings, num_ranks)
    try:
        return read_plan(Path(plan_file), model.embeddings, num_ranks)
    except (FileNotFoundError, ConfigError, MissingKeyError) as error:
        raise HugeCtrError(str(error)) from None
