"""What it costs to keep tables on the host and only their hot rows on the GPU: per training step and per request.

A lookup that the cache does not answer brings its row over the host link. Training brings the optimizer's states with
the row and takes an evicted row and its states back; both directions of the link run at the same time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from predictor.base.errors import ConfigError
from predictor.costs.hardware import Quantity, System
from predictor.costs.host_copy import EFFICIENCY
from predictor.workloads.recommender.keys import KeyDistribution
from predictor.workloads.recommender.model import Recommender
from predictor.workloads.recommender.plan import ShardedTable, Sharding
from predictor.workloads.recommender.run import RecommenderRun

ROW_BYTES_PER_VALUE = 4  # rows and states are fp32, also in mixed precision
# 16 lanes at 16 GT/s with 128b/130b coding.
PCIE_4 = Quantity(value=31.5, source="assumption: PCI Express 4.0 x16, 16 GT/s · 16 lanes · 128/130, per direction")


def host_link(system: System | None) -> Quantity:
    """Return the bandwidth between a GPU and its host, GB/s per direction; PCI Express 4.0 where none is stated."""
    stated = None if system is None else system.links.host_gb_per_s
    return PCIE_4 if stated is None else stated


class Shard(NamedTuple):
    """One rank's part of a table: rows, columns, and keys of a step that it looks up."""

    rows: float
    width: int
    lookups: float


@dataclass(frozen=True, slots=True)
class CacheCost:
    """What one rank's cache costs in one step, or a device's in one request.

    Attributes:
        cached_share: of the rows, from 0 to 1.
        cached_bytes: on the device, optimizer states included where the model trains.
        hit_share: of the lookups.
        missed_rows: different rows that come over the link.
        bytes_in, bytes_out: over the link, to the device and back.
        us: of the busier direction, at the rate that copies of pinned memory reach; what computation hides of it is not
            taken off.
    """

    cached_share: float
    cached_bytes: float
    hit_share: float
    missed_rows: float
    bytes_in: float
    bytes_out: float
    us: float


def lru_hit_share(keys: KeyDistribution, cached: float, rows: float) -> float:
    """Return the share of lookups that an LRU cache answers.

    A row stays for as many lookups as bring ``cached`` different keys (the characteristic time), and the next lookup
    misses as often as it would bring one more. Source: Che, Tung and Wang 2002, "Hierarchical Web caching systems".
    """
    if cached <= 0 or rows <= 0:
        return 0.0
    if cached >= rows:
        return 1.0
    low, high = 0.0, cached
    while keys.distinct(high, rows) < cached:
        low, high = high, 2.0 * high
    while high - low > 1e-6 * high:
        middle = (low + high) / 2.0
        low, high = (middle, high) if keys.distinct(middle, rows) < cached else (low, middle)
    return 1.0 - (keys.distinct(high + 1.0, rows) - keys.distinct(high, rows))


def share_for_hits(keys: KeyDistribution, hit_share: float, rows: float) -> float:
    """Return the share of the rows, the most frequent ones, that answers so many of the lookups."""
    low, high = 0.0, 1.0
    while high - low > 1e-9:
        middle = (low + high) / 2.0
        low, high = (middle, high) if keys.hit_share(middle * rows, rows) < hit_share else (low, middle)
    return high


def missed_rows(keys: KeyDistribution, lookups: float, cached: float, rows: float) -> float:
    """Return the different rows that so many lookups touch and a cache of the most frequent keys does not hold.

    Lookups split into those of cached keys and the rest, which are independent of each other for Poisson arrivals.
    """
    if cached >= rows:
        return 0.0
    hits = lookups * keys.hit_share(cached, rows)
    return max(0.0, keys.distinct(lookups, rows) - keys.distinct(hits, cached))


def shard(table: ShardedTable, num_ranks: int, batch_size: int) -> Shard:
    """Return the part of a table that each of its ranks holds, with the lookups of the global batch that reach it."""
    whole = table.table
    lookups = batch_size * whole.lookups_per_sample
    match table.sharding:
        case Sharding.ROW_WISE:
            return Shard(whole.rows / num_ranks, whole.width, lookups / num_ranks)
        case Sharding.COLUMN_WISE:
            return Shard(whole.rows, whole.width // len(table.ranks), lookups)
    return Shard(whole.rows, whole.width, lookups)


def step_cost(run: RecommenderRun, cached_share: float, link: Quantity) -> CacheCost:
    """Return the cost of a training step whose ranks keep so much of each of their tables on the GPU.

    The rank with most bytes over its link counts. Every slot of a table has the run's distribution of keys.

    Raises:
        ConfigError: the share is not from 0 to 1, or the model has no optimizer.
    """
    _check_share(cached_share)
    optimizers = {layer.name: layer.optimizer or run.model.optimizer for layer in run.model.embeddings}
    costs = []
    for rank in range(run.num_gpus):
        parts = []
        for table in run.plan.tables:
            optimizer = optimizers[table.table.layer]
            if optimizer is None:
                raise ConfigError("optimizer is missing; a training step needs one")
            if rank in table.ranks:
                held = shard(table, run.num_gpus, run.batch_size)
                slots = len(table.table.slots)
                parts.append(_part(run.keys, held, slots, cached_share, 1 + optimizer.kind.num_states))
        costs.append(_together(cached_share, parts, link, is_training=True))
    return max(costs, key=lambda cost: cost.us)


def request_cost(
    model: Recommender, samples: int, cached_share: float, link: Quantity, keys: KeyDistribution
) -> CacheCost:
    """Return the cost of one inference request of so many samples on one device.

    Raises:
        ConfigError: the share is not from 0 to 1, or the request has no sample.
    """
    _check_share(cached_share)
    if samples < 1:
        raise ConfigError(f"a request has {samples} samples; expected at least 1")
    tables = [table for layer in model.embeddings for table in layer.tables(1)]
    parts = [
        _part(
            keys,
            Shard(table.rows, table.width, samples * table.lookups_per_sample),
            len(table.slots),
            cached_share,
            values_per_weight=1,
        )
        for table in tables
    ]
    return _together(cached_share, parts, link, is_training=False)


class _Part(NamedTuple):
    cached_bytes: float
    lookups: float
    hits: float
    missed: float
    missed_bytes: float


def _part(keys: KeyDistribution, held: Shard, num_slots: int, cached_share: float, values_per_weight: int) -> _Part:
    """Return one table's numbers; its slots have keys of their own, an equal part of its rows each."""
    rows, lookups = held.rows / num_slots, held.lookups / num_slots
    cached = cached_share * rows
    row_bytes = held.width * ROW_BYTES_PER_VALUE * values_per_weight
    missed = num_slots * missed_rows(keys, lookups, cached, rows)
    return _Part(
        cached_bytes=num_slots * cached * row_bytes,
        lookups=held.lookups,
        hits=held.lookups * keys.hit_share(cached, rows),
        missed=missed,
        missed_bytes=missed * row_bytes,
    )


def _together(cached_share: float, parts: list[_Part], link: Quantity, *, is_training: bool) -> CacheCost:
    lookups = sum(part.lookups for part in parts)
    missed_bytes = sum(part.missed_bytes for part in parts)
    return CacheCost(
        cached_share=cached_share,
        cached_bytes=sum(part.cached_bytes for part in parts),
        hit_share=sum(part.hits for part in parts) / lookups if lookups else 1.0,
        missed_rows=sum(part.missed for part in parts),
        bytes_in=missed_bytes,
        bytes_out=missed_bytes if is_training else 0.0,
        us=missed_bytes / (link.value * 1e3 * EFFICIENCY),
    )


def _check_share(cached_share: float) -> None:
    if not 0.0 <= cached_share <= 1.0:
        raise ConfigError(f"the cached share of the rows is {cached_share}; expected 0 to 1")
