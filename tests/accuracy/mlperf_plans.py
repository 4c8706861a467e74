"""The sharding plans of MLPerf's DLRM-DCNv2 submissions with HugeCTR, by the rule of their planner.

Tables smaller than a threshold are replicated. The others are placed the most keys per part first, each part on the
group of GPUs that costs least so far and has no other part of the table; then the hottest table that can be is split
into twice as many parts, and all are placed again. A group costs its keys per sample and so much per part as the ratio
of memory to link bandwidth says. Of 20 rounds the one with the cheapest costliest group counts. A group is a GPU, or on
several nodes a node, over whose GPUs a table's rows are then spread.

Source: mlcommons/training_results_v5.0 (and v4.1), NVIDIA, dlrm_dcnv2, hugectr/sharding/planner.py and config_*.sh.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from predictor.recommender.workload.embedding import EmbeddingLayer
from predictor.recommender.workload.plan import ShardedTable, Sharding, ShardingPlan

ROUNDS = 20
GB_PER_WEIGHT = 8e-9  # the weight and AdaGrad's sum, fp32
GB_PER_GPU = 60.0
WORK_RATIO = 4.0  # bytes of memory per byte over the links (mem_comm_work_ratio)


@dataclass
class _Group:
    cost: float = 0.0
    used_gb: float = 0.0
    tables: list[int] = field(default_factory=list)


def _place(
    tables: list[int],
    hotness: list[float],
    sizes_gb: list[float],
    parts: dict[int, int],
    groups: list[_Group],
    part_cost: float,
    room_gb: float,
) -> int | None:
    """Place all parts; return a table that found no room, None where all did."""
    shards = sorted(
        ((hotness[table] / parts[table], table) for table in tables for _ in range(parts[table])), reverse=True
    )
    for keys, table in shards:
        size = sizes_gb[table] / parts[table]
        open_groups = [g for g in groups if table not in g.tables and g.used_gb + size <= room_gb]
        if not open_groups:
            return table
        group = min(open_groups, key=lambda g: g.cost)
        group.cost += keys + part_cost
        group.used_gb += size
        group.tables.append(table)
    return None


def _groups_of(
    layer: EmbeddingLayer, count: int, bandwidth_ratio: float, replicated: list[int], room_gb: float
) -> list[_Group]:
    """Return the groups of the best round."""
    sizes = [rows * layer.width * GB_PER_WEIGHT for rows in layer.slot_rows]
    room_gb -= sum(sizes[table] for table in replicated)
    tables = [table for table in range(layer.num_slots) if table not in replicated]
    parts = dict.fromkeys(tables, 1)
    best: list[_Group] | None = None
    for _ in range(ROUNDS):
        groups = [_Group() for _ in range(count)]
        homeless = _place(tables, list(layer.hotness), sizes, parts, groups, bandwidth_ratio / WORK_RATIO, room_gb)
        if homeless is None:
            if best is None or max(g.cost for g in groups) < max(g.cost for g in best):
                best = groups
            hottest = sorted(tables, key=lambda table: (-layer.hotness[table] / parts[table], -table))
            splittable = [table for table in hottest if 2 * parts[table] <= count]
        else:
            splittable = [homeless] if 2 * parts[homeless] <= count else []
        if not splittable:
            break
        parts[splittable[0]] *= 2
    assert best is not None, "MLPerf's tables fit"
    return best


def mlperf_plan(layer: EmbeddingLayer, num_gpus: int, gpus_per_node: int) -> ShardingPlan:
    """Return the plan of a submission: per GPU on one node (auto), per node on several (hier_auto)."""
    is_single = num_gpus <= gpus_per_node
    width = 1 if is_single else gpus_per_node
    # Bandwidth of memory over that of links, and the threshold of replication in GB: config_DGXH100_1x8x6912.sh and
    # config_DGXH100_16x8x1056.sh. B200's 9 and H200's 11 in place of 7 give the same plan.
    bandwidth_ratio, threshold_gb = (7.0, 0.008) if is_single else (67.0, 0.0125)
    sizes = [rows * layer.width * GB_PER_WEIGHT for rows in layer.slot_rows]
    replicated = [table for table, size in enumerate(sizes) if size < threshold_gb]
    groups = _groups_of(layer, num_gpus // width, bandwidth_ratio, replicated, GB_PER_GPU * width)
    sharded = []
    for number, table in enumerate(layer.tables(num_gpus)):
        homes = [g for g, group in enumerate(groups) if number in group.tables]
        ranks = tuple(rank for home in homes for rank in range(home * width, (home + 1) * width))
        if number in replicated:
            sharded.append(ShardedTable(table, Sharding.DATA_PARALLEL, tuple(range(num_gpus))))
        elif len(ranks) == num_gpus:
            sharded.append(ShardedTable(table, Sharding.ROW_WISE, ranks))
        else:
            kind = Sharding.TABLE_WISE if len(ranks) == 1 else Sharding.TABLE_ROW_WISE
            sharded.append(ShardedTable(table, kind, ranks))
    plan = ShardingPlan(num_gpus, tuple(sharded))
    plan.check()
    return plan
