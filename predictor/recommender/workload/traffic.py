"""Lookups, updates and traffic of each rank: a sharding plan as numbers of keys, rows and bytes.

Keys of one slot follow the run's distribution, the most frequent first. The rows of a row-wise table lie on rank
key mod ranks, as HugeCTR distributes them; keys of the slots of one table follow each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from predictor.recommender.workload.embedding import EmbeddingLayer, Table
from predictor.recommender.workload.optimizer import Optimizer, UpdateType
from predictor.recommender.workload.plan import ShardedTable, Sharding
from predictor.recommender.workload.run import Engine, RecommenderRun

FP32_BYTES = 4
LOCAL = (Sharding.DATA_PARALLEL,)
BY_ROWS = (Sharding.ROW_WISE, Sharding.TABLE_ROW_WISE)


class SlotKeys(NamedTuple):
    """The keys of one slot: lookups per sample, the number of keys, and the first key's number in its table."""

    hotness: float
    rows: float
    first: int


@dataclass(frozen=True, slots=True)
class Lookups:
    """What one rank does per step in its tables of one width that are sharded alike.

    Attributes:
        width: columns of a row on this rank.
        bags: pooled vectors.
        lookups: keys.
        touched: distinct rows of them.
        rows: that the rank holds.
        tables: number of them.
    """

    sharding: Sharding
    width: int
    optimizer: Optimizer | None
    bags: float
    lookups: float
    touched: float
    rows: float
    tables: int

    @property
    def updates_all_rows(self) -> bool:
        """Return whether a step updates rows that no key named, as moments decay there too."""
        return self.optimizer is not None and self.optimizer.update is UpdateType.GLOBAL and self._num_states > 0

    @property
    def _num_states(self) -> int:
        return 0 if self.optimizer is None else self.optimizer.kind.num_states

    @property
    def parameters(self) -> float:
        """Return the weights that the rank holds."""
        return self.rows * self.width

    @property
    def moved_bytes(self) -> float:
        """Return the bytes of rows, pooled vectors and optimizer states that a step reads and writes, at least."""
        updated = self.rows if self.updates_all_rows else self.touched
        values = 2 * self.bags + 2 * self.lookups + 2 * (1 + self._num_states) * updated
        return values * self.width * FP32_BYTES


@dataclass(frozen=True, slots=True)
class RankTraffic:
    """One rank's share of a step.

    Attributes:
        pooled: elements of pooled vectors that it computes for all samples, of table- and column-wise tables.
        keys: that reach it, other ranks' and its own, of tables that are not data-parallel.
    """

    rank: int
    groups: tuple[Lookups, ...]
    pooled: float
    within: float
    keys: float

    @property
    def lookups(self) -> float:
        """Return the keys that it looks up."""
        return sum(group.lookups for group in self.groups)

    @property
    def parameters(self) -> float:
        """Return the embedding weights that it holds."""
        return sum(group.parameters for group in self.groups)

    @property
    def moved_bytes(self) -> float:
        """Return the bytes that lookups and updates move."""
        return sum(group.moved_bytes for group in self.groups)


def layer_of(run: RecommenderRun, table: Table) -> EmbeddingLayer:
    """Return the layer of a table."""
    return next(layer for layer in run.model.embeddings if layer.name == table.layer)


def optimizer_of(run: RecommenderRun, table: Table) -> Optimizer | None:
    """Return what updates a table's rows."""
    return layer_of(run, table).optimizer or run.model.optimizer


def slot_keys(run: RecommenderRun, table: Table) -> Iterator[SlotKeys]:
    """Yield the keys of each of a table's slots; where their numbers are not known, slots share the rows evenly."""
    sizes, first = layer_of(run, table).slot_rows, 0.0
    for slot, hotness in zip(table.slots, table.hotness, strict=True):
        rows = float(sizes[slot]) if sizes else table.rows / len(table.slots)
        yield SlotKeys(hotness, rows, int(first))
        first += rows


def row_wise_share(run: RecommenderRun, keys: SlotKeys, rank: int, ranks: int) -> float:
    """Return the share of a slot's lookups that reach one of the ``ranks`` that share out a table's rows."""
    skew = run.keys
    order = (rank - keys.first) % ranks  # the most frequent of the slot's keys that lies there
    head = skew.hit_share(min(ranks, keys.rows), keys.rows)
    own = skew.hit_share(order + 1, keys.rows) - skew.hit_share(order, keys.rows)
    share = own + (1.0 - head) / ranks
    if skew.follow and keys.hotness > 1.0:  # the first key lies there, those that follow it anywhere
        return 1.0 / ranks + (share - 1.0 / ranks) / keys.hotness
    return share


def _on_rank(run: RecommenderRun, sharded: ShardedTable, rank: int) -> Lookups:
    """Return what a rank that holds a part of a table does in it."""
    table, samples = sharded.table, float(run.batch_size)
    width, rows, share = table.width, float(table.rows), 1.0
    lookups = touched = 0.0
    if sharded.sharding is Sharding.COLUMN_WISE:
        width //= len(sharded.ranks)
    elif sharded.sharding is Sharding.DATA_PARALLEL:
        samples /= run.num_gpus
    elif sharded.sharding in BY_ROWS:
        share = 1.0 / len(sharded.ranks)
        rows *= share
    for keys in slot_keys(run, table):
        drawn = samples * keys.hotness
        here = 1.0
        if sharded.sharding in BY_ROWS:
            here = row_wise_share(run, keys, sharded.ranks.index(rank), len(sharded.ranks))
        lookups += drawn * here
        touched += min(run.keys.touched(samples, keys.hotness, keys.rows) * share, drawn * here)
    bags = lookups if run.engine is Engine.SOK else samples * len(table.slots)
    return Lookups(sharded.sharding, width, optimizer_of(run, table), bags, lookups, touched, rows, 1)


def _merged(groups: list[Lookups]) -> tuple[Lookups, ...]:
    """Return groups with those of one width, sharding and optimizer as one: one kernel looks all of them up."""
    merged: dict[tuple[Sharding, int, Optimizer | None], Lookups] = {}
    for group in groups:
        key = group.sharding, group.width, group.optimizer
        other = merged.get(key)
        merged[key] = (
            group
            if other is None
            else Lookups(
                *key,
                other.bags + group.bags,
                other.lookups + group.lookups,
                other.touched + group.touched,
                other.rows + group.rows,
                other.tables + group.tables,
            )
        )
    return tuple(merged.values())


def on_node(run: RecommenderRun, sharded: ShardedTable, rank: int) -> list[int]:
    """Return the ranks of a rank's node that share out a table's rows with it, itself among them."""
    if sharded.sharding is not Sharding.TABLE_ROW_WISE:
        return [rank]
    return [other for other in sharded.ranks if other // run.gpus_per_node == rank // run.gpus_per_node]


def rank_traffic(run: RecommenderRun, rank: int) -> RankTraffic:
    """Return what one rank does in its embedding tables."""
    groups, pooled, within, keys = [], 0.0, 0.0, 0.0
    for sharded in run.plan.tables:
        if rank not in sharded.ranks:
            continue
        part = _on_rank(run, sharded, rank)
        groups.append(part)
        if sharded.sharding in (Sharding.TABLE_WISE, Sharding.COLUMN_WISE, Sharding.TABLE_ROW_WISE):
            peers = 1 if run.num_nodes == 1 else len(on_node(run, sharded, rank))
            pooled += part.bags * part.width / peers
            within += part.bags * part.width / peers if peers > 1 else 0.0
        if sharded.sharding not in LOCAL:
            keys += part.lookups
    return RankTraffic(rank, _merged(groups), pooled, within, keys)


def all_traffic(run: RecommenderRun) -> tuple[RankTraffic, ...]:
    """Return what every rank does in its embedding tables."""
    return tuple(rank_traffic(run, rank) for rank in range(run.num_gpus))


@dataclass(frozen=True, slots=True)
class Exchange:
    """What ranks send each other for the embeddings of one step, by the rank that sends or receives most.

    Attributes:
        pooled: elements of an all-to-all of pooled vectors, and of partial sums of tables whose rows some ranks share
            out; the same of their gradients.
        partial: elements that each rank keeps of a reduce-scatter of partial sums; gathered backward.
        within: as ``partial``, of a reduce-scatter within nodes ahead of the all-to-all.
        keys, lengths: of the input's all-to-alls.
        features: slots whose lengths are sent.
        replicated: weights of data-parallel tables, whose gradients all ranks sum.
    """

    pooled: float
    partial: float
    within: float
    keys: float
    lengths: float
    features: int
    replicated: float


def _partial_sums(run: RecommenderRun, sharded: ShardedTable) -> int:
    """Return the sums that a sample's rank gets for one slot: from each rank, or from each node of several."""
    if sharded.sharding is not Sharding.TABLE_ROW_WISE:
        return 1
    senders = sharded.ranks if run.num_nodes == 1 else {rank // run.gpus_per_node for rank in sharded.ranks}
    return len(senders)


def exchange(run: RecommenderRun, traffic: tuple[RankTraffic, ...]) -> Exchange:
    """Return what ranks send each other for the embeddings of one step."""
    local = run.batch_size / run.num_gpus
    arriving = partial = keys = lengths = replicated = 0.0
    features = 0
    for sharded in run.plan.tables:
        table, slots = sharded.table, len(sharded.table.slots)
        if sharded.sharding is Sharding.DATA_PARALLEL:
            replicated += table.parameters
            continue
        copies = len(sharded.ranks) if sharded.sharding is Sharding.COLUMN_WISE else 1
        buckets = len(sharded.ranks) if sharded.sharding in BY_ROWS else copies
        features += slots * buckets
        keys += local * table.lookups_per_sample * copies
        lengths += local * slots * buckets
        if sharded.sharding is Sharding.ROW_WISE:
            partial += local * slots * table.width
        else:  # a partial sum from each rank that has some of the rows
            arriving += local * slots * table.width * _partial_sums(run, sharded)
    return Exchange(
        pooled=max(arriving, *(rank.pooled for rank in traffic)) if arriving else 0.0,
        partial=partial,
        within=max(rank.within for rank in traffic),
        keys=max(keys, *(rank.keys for rank in traffic)) if keys else 0.0,
        lengths=lengths,
        features=features,
        replicated=replicated,
    )
