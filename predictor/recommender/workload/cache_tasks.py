"""Tables larger than the memory of the GPUs: tasks of a step whose most frequent rows alone lie in device memory.

Rows that a batch looks up and that are not there come over the host's link before the lookup, with their optimizer's
states, and go back after the update. ``cache`` prices the rows that an inference request misses.
A cache that keeps the most frequent rows is the best that any replacement policy reaches for independent draws (Aho,
Denning and Ullman 1971, doi:10.1145/321623.321632, A0), so that LRU and LFU miss more.
"""

from __future__ import annotations

from dataclasses import replace

from predictor.core.workload.tasks import FORWARD, Part, Task, shaped_task
from predictor.recommender.workload.cache import missed_rows
from predictor.recommender.workload.plan import ShardedTable, Sharding, ShardingPlan
from predictor.recommender.workload.run import RecommenderRun
from predictor.recommender.workload.traffic import Lookups, RankTraffic, rank_traffic, slot_keys

FP32_BYTES = 4


def hit_rate(run: RecommenderRun) -> float:
    """Return the share of all lookups in tables that are not data-parallel that device memory answers."""
    hits = lookups = 0.0
    for sharded in run.plan.tables:
        if sharded.sharding is not Sharding.DATA_PARALLEL:
            for keys in slot_keys(run, sharded.table):
                lookups += keys.hotness
                hits += keys.hotness * run.keys.hit_share(run.cached_share * keys.rows, keys.rows)
    return hits / lookups if lookups else 1.0


def _missed_share(run: RecommenderRun, sharded: ShardedTable) -> float:
    """Return the share of the different rows that a batch looks up in a table that is on the host."""
    touched = missed = 0.0
    for keys in slot_keys(run, sharded.table):
        drawn = run.batch_size * keys.hotness
        touched += run.keys.distinct(drawn, keys.rows)
        missed += missed_rows(run.keys, drawn, run.cached_share * keys.rows, keys.rows)
    return missed / touched if touched else 0.0


def _of_table(run: RecommenderRun, sharded: ShardedTable, rank: int) -> Lookups:
    (group,) = rank_traffic(replace(run, plan=ShardingPlan(run.num_gpus, (sharded,))), rank).groups
    return group


def missed_bytes(run: RecommenderRun, rank: int) -> float:
    """Return the bytes of rows and states that one rank fetches in a step, and writes back.

    An optimizer that updates all rows needs all that are not there.
    """
    if run.cached_share >= 1.0:
        return 0.0
    missed = 0.0
    for sharded in run.plan.tables:
        if rank not in sharded.ranks or sharded.sharding is Sharding.DATA_PARALLEL:
            continue
        group = _of_table(run, sharded, rank)
        states = 0 if group.optimizer is None else group.optimizer.kind.num_states
        absent = group.rows * (1.0 - run.cached_share)
        if not group.updates_all_rows:
            absent = min(absent, group.touched * _missed_share(run, sharded))
        missed += absent * group.width * FP32_BYTES * (1 + states)
    return missed


def transfer_tasks(run: RecommenderRun, traffic: RankTraffic) -> list[Task]:
    """Return the transfer of a rank's missing rows in one direction."""
    size_bytes = round(missed_bytes(run, traffic.rank))
    if size_bytes < 1:
        return []
    task = shaped_task("host_to_device", (size_bytes,), FORWARD)
    return [task._replace(part=Part.INPUT)]
