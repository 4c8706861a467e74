"""Tables on the host and a cache of their hot rows on the GPU: hits, misses, and the traffic of an inference request.

A lookup that the cache does not answer brings its row over the host link. ``cache_tasks`` counts what a training step
brings, and takes back, in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log

from predictor.core.base.errors import ConfigError
from predictor.core.costs.host_copy import EFFICIENCY
from predictor.core.hardware.hardware import Quantity, System
from predictor.recommender.workload.keys import KeyDistribution
from predictor.recommender.workload.model import Recommender

ALL_COME = 100.0  # e^100 lookups more
VALUE_BYTES = 4  # rows are fp32, also in mixed precision
# 16 lanes at 16 GT/s with 128b/130b coding.
PCIE_4 = Quantity(value=31.5, source="assumption: PCI Express 4.0 x16, 16 GT/s · 16 lanes · 128/130, per direction")


def host_link(system: System | None) -> Quantity:
    """Return the bandwidth between a GPU and its host, GB/s per direction; PCI Express 4.0 where none is stated."""
    stated = None if system is None else system.links.host_gb_per_s
    return PCIE_4 if stated is None else stated


@dataclass(frozen=True, slots=True)
class RequestCost:
    """What a device's cache costs one inference request.

    Attributes:
        cached_share: of the rows, from 0 to 1.
        cached_bytes: on the device.
        hit_share: of the lookups.
        missed_rows: different rows that come over the link.
        missed_bytes: of these rows.
        us: over the link, at the rate that copies of pinned memory reach; what computation hides of it is not taken
            off.
    """

    cached_share: float
    cached_bytes: float
    hit_share: float
    missed_rows: float
    missed_bytes: float
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
    most = keys.hit_share(cached, rows)  # no cache answers more of independent lookups
    if keys.exponent == 0:
        return most
    # Between as many lookups as rows are kept, and so many that every key has come.
    low, high = log(cached), log(cached) + keys.exponent * log(rows + 1.0) + ALL_COME
    while high - low > 1e-9 * max(1.0, abs(high)):
        middle = (low + high) / 2.0
        low, high = (middle, high) if keys.after(middle, rows)[0] < cached else (low, middle)
    return max(0.0, min(most, 1.0 - keys.after(high, rows)[1]))


def missed_rows(keys: KeyDistribution, lookups: float, cached: float, rows: float) -> float:
    """Return the different rows that so many lookups touch and a cache of the most frequent keys does not hold.

    Lookups split into those of cached keys and the rest, which are independent of each other for Poisson arrivals.
    """
    if cached >= rows:
        return 0.0
    hits = lookups * keys.hit_share(cached, rows)
    return max(0.0, keys.distinct(lookups, rows) - keys.distinct(hits, cached))


def request_cost(
    model: Recommender, samples: int, cached_share: float, link: Quantity, keys: KeyDistribution
) -> RequestCost:
    """Return the cost of one inference request of so many samples on one device.

    Slots have keys of their own: as many as their sizes say, otherwise an equal part of their table's rows.

    Raises:
        ConfigError: the share is not from 0 to 1, or the request has no sample.
    """
    if not 0.0 <= cached_share <= 1.0:
        raise ConfigError(f"the cached share of the rows is {cached_share}; expected 0 to 1")
    if samples < 1:
        raise ConfigError(f"a request has {samples} samples; expected at least 1")
    cached_bytes = lookups = hits = missed = missed_bytes = 0.0
    for layer in model.embeddings:
        for table in layer.tables(1):
            row_bytes = table.width * VALUE_BYTES
            cached_bytes += cached_share * table.rows * row_bytes
            for slot, hotness in zip(table.slots, table.hotness, strict=True):
                rows = layer.slot_rows[slot] if layer.slot_rows else table.rows / len(table.slots)
                absent = missed_rows(keys, samples * hotness, cached_share * rows, rows)
                lookups += samples * hotness
                hits += samples * hotness * keys.hit_share(cached_share * rows, rows)
                missed += absent
                missed_bytes += absent * row_bytes
    us = missed_bytes / (link.value * 1e3 * EFFICIENCY)
    return RequestCost(cached_share, cached_bytes, hits / lookups if lookups else 1.0, missed, missed_bytes, us)
