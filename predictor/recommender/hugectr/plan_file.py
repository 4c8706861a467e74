"""Sharding plans on disk: JSON with every table's sharding and ranks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from predictor.core.base.errors import ConfigError, nearest
from predictor.core.base.files import write_whole
from predictor.core.base.read_yaml import first_problem
from predictor.recommender.workload.embedding import EmbeddingLayer
from predictor.recommender.workload.plan import ShardedTable, Sharding, ShardingPlan

FORMAT = "estimate-train-time/sharding-plan/1"


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    table: str
    sharding: Sharding
    ranks: tuple[int, ...] = Field(description="in the order of columns where they are split")


class _Plan(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal["estimate-train-time/sharding-plan/1"]
    num_ranks: int = Field(gt=0)
    tables: tuple[_Entry, ...]


def plan_entries(plan: ShardingPlan) -> dict[str, Any]:
    """Return a plan as plain lists, dictionaries, strings and numbers, as ``read_plan`` reads it."""
    tables = [
        {"table": sharded.table.name, "sharding": str(sharded.sharding), "ranks": list(sharded.ranks)}
        for sharded in plan.tables
    ]
    return {"format": FORMAT, "num_ranks": plan.num_ranks, "tables": tables}


def plan_text(plan: ShardingPlan) -> str:
    """Return a plan as JSON."""
    return json.dumps(plan_entries(plan), indent=2) + "\n"


def write_plan(plan: ShardingPlan, path: Path) -> None:
    """Write a plan.

    Raises:
        OSError: it cannot be written.
    """
    write_whole(path, plan_text(plan))


def read_plan(path: Path, embeddings: tuple[EmbeddingLayer, ...], num_ranks: int) -> ShardingPlan:
    """Read the plan of a model's tables on so many ranks.

    Raises:
        FileNotFoundError: there is no such file.
        ConfigError: it is no plan, is for another number of ranks or other tables, or splits a table as it cannot be.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise FileNotFoundError(f"plan {path} does not exist") from None
    except IsADirectoryError:
        raise ConfigError(f"plan {path} is a folder; expected a JSON file") from None
    return parse_plan(content, str(path), embeddings, num_ranks)


def parse_plan(
    content: bytes | dict[str, Any], path: str, embeddings: tuple[EmbeddingLayer, ...], num_ranks: int
) -> ShardingPlan:
    """Return a plan that was read already, as text or as a mapping; ``path`` says where it stands.

    Raises:
        ConfigError: as ``read_plan``.
    """
    try:
        text = content if isinstance(content, bytes) else json.dumps(content)
        given = _Plan.model_validate_json(text)
    except ValidationError as error:
        raise ConfigError(f"plan {path}: {first_problem(error)}") from None
    if given.num_ranks != num_ranks:
        raise ConfigError(f"plan {path} is for {given.num_ranks} ranks; the run has {num_ranks} GPUs")
    entries = {entry.table: entry for entry in given.tables}
    if len(entries) < len(given.tables):
        raise ConfigError(f"plan {path} names a table twice; give each table once")
    tables = [table for layer in embeddings for table in layer.tables(num_ranks)]
    names = [table.name for table in tables]
    for name in entries:
        if name not in names:
            raise ConfigError(f"plan {path}: the model has no table {name}.{nearest(name, names)}")
    for name in names:
        if name not in entries:
            raise ConfigError(f"plan {path} leaves out table {name}; give every table's sharding and ranks")
    sharded = tuple(ShardedTable(table, entries[table.name].sharding, entries[table.name].ranks) for table in tables)
    plan = ShardingPlan(num_ranks, sharded)
    try:
        plan.check()
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    return plan
