"""Sharding plans on disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from predictor.core.base.errors import ConfigError
from predictor.recommender.hugectr.plan_file import plan_text, read_plan, write_plan
from predictor.recommender.workload.plan import Sharding
from tests.unit.recommender_examples import dlrm, loaded

RUN = loaded(dlrm()).run
EMBEDDINGS = RUN.model.embeddings
Content = dict[str, Any]


def content() -> Content:
    """Return the default plan's file."""
    plan: Content = json.loads(plan_text(RUN.plan))
    return plan


def test_plan_reads_back(tmp_path: Path) -> None:
    write_plan(RUN.plan, tmp_path / "plan.json")
    assert read_plan(tmp_path / "plan.json", EMBEDDINGS, 2) == RUN.plan


def test_tables_may_stand_in_any_order(tmp_path: Path) -> None:
    plan = content()
    plan["tables"].reverse()
    plan["tables"][0] |= {"sharding": "column_wise", "ranks": [1, 0]}
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    read = read_plan(tmp_path / "plan.json", EMBEDDINGS, 2)
    assert [sharded.table.name for sharded in read.tables] == [sharded.table.name for sharded in RUN.plan.tables]
    assert (read.tables[-1].sharding, read.tables[-1].ranks) == (Sharding.COLUMN_WISE, (1, 0))


def without_first(plan: Content) -> None:
    del plan["tables"][0]


def twice(plan: Content) -> None:
    plan["tables"].append(plan["tables"][0])


def renamed(plan: Content) -> None:
    plan["tables"][0]["table"] = "embedding.slot9"


def on_no_rank(plan: Content) -> None:
    plan["tables"][0]["ranks"] = [7]


def unknown_sharding(plan: Content) -> None:
    plan["tables"][0]["sharding"] = "grid"


def unknown_key(plan: Content) -> None:
    plan["tables"][0]["host"] = 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without_first, "leaves out table embedding.slot0"),
        (twice, "names a table twice"),
        (renamed, r"no table embedding.slot9. Did you mean embedding.slot"),
        (on_no_rank, r"plan.json: plan of embedding.slot0: ranks are \[7\]"),
        (unknown_sharding, "tables.0.sharding"),
        (unknown_key, "tables.0.host"),
    ],
)
def test_wrong_plan_is_refused_in_one_line(tmp_path: Path, change: Any, message: str) -> None:
    plan = content()
    change(plan)
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    with pytest.raises(ConfigError, match=message) as refused:
        read_plan(tmp_path / "plan.json", EMBEDDINGS, 2)
    assert "\n" not in str(refused.value)


def test_plan_of_other_ranks_is_refused(tmp_path: Path) -> None:
    write_plan(RUN.plan, tmp_path / "plan.json")
    with pytest.raises(ConfigError, match="is for 2 ranks; the run has 4 GPUs"):
        read_plan(tmp_path / "plan.json", EMBEDDINGS, 4)


def test_no_plan_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="does not exist"):
        read_plan(tmp_path / "plan.json", EMBEDDINGS, 2)
    (tmp_path / "plan.json").write_text("{")
    with pytest.raises(ConfigError, match=r"plan\.json"):
        read_plan(tmp_path / "plan.json", EMBEDDINGS, 2)
    with pytest.raises(ConfigError, match="is a folder"):
        read_plan(tmp_path, EMBEDDINGS, 2)
