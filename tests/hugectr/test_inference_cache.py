"""The embedding cache evicts as its policy says, and answers as the parameter server would."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hugectr.inference.device_cache import WAYS, DeviceCache, Eviction
from hugectr.inference.parameter_server import HostTable

CPU = torch.device("cpu")


class Reference:
    """One fully associative set in plain Python; a request is one key."""

    def __init__(self, ways: int, eviction: Eviction) -> None:
        self.ways, self.eviction = ways, eviction
        self.uses: dict[int, int] = {}
        self.last: dict[int, int] = {}
        self.clock = 0

    def request(self, key: int) -> bool:
        """Return whether the key was a hit; a missed one comes in."""
        self.clock += 1
        hit = key in self.last
        if not hit and len(self.last) == self.ways:
            victim = min(self.last, key=self._worth)
            del self.last[victim], self.uses[victim]
        self.uses[key] = self.uses.get(key, 0) + 1
        self.last[key] = self.clock
        return hit

    def _worth(self, key: int) -> tuple[int, int]:
        return (0 if self.eviction is Eviction.LRU else self.uses[key]), self.last[key]


def request(cache: DeviceCache, keys: list[int]) -> list[bool]:
    tags = torch.tensor(keys)[:, None]
    positions = cache.find(tags)
    hits = positions >= 0
    vectors = cache.use(positions[hits])
    assert vectors[:, 0].tolist() == tags[hits, 0].tolist()
    missed, uses = torch.unique(tags[~hits], dim=0, return_counts=True)
    cache.insert(missed, missed.float().expand(-1, 4), uses)
    return list(hits.tolist())


@pytest.mark.parametrize("eviction", list(Eviction))
@pytest.mark.parametrize("ways", [1, 3, WAYS])
def test_full_set_evicts_as_the_policy_says(ways: int, eviction: Eviction) -> None:
    random = np.random.default_rng(ways)
    cache, reference = DeviceCache(ways, 4, 1, eviction, CPU), Reference(ways, eviction)
    assert (cache.sets, cache.ways) == (1, ways)
    hits = 0
    for number, key in enumerate(random.zipf(1.3, 600) % 200):
        (hit,) = request(cache, [int(key)])
        assert hit == reference.request(int(key)), f"request {number}"
        hits += hit
    assert 0 < hits < 600
    assert cache.evictions == 600 - hits - ways


def test_least_recent_and_least_frequent_differ() -> None:
    hits = {}
    for eviction in Eviction:
        cache = DeviceCache(2, 4, 1, eviction, CPU)
        for key in (1, 1, 1, 2, 3):
            request(cache, [key])
        (hits[eviction],) = request(cache, [1])
    assert hits == {Eviction.LRU: False, Eviction.LFU: True}


@pytest.mark.parametrize("columns", [1, 2])
def test_many_sets_hold_what_fits(columns: int) -> None:
    cache = DeviceCache(10 * WAYS, 4, columns, Eviction.LRU, CPU)
    tags = torch.arange(200)[:, None].repeat(1, columns)
    cache.insert(tags, tags[:, :1].float().expand(-1, 4), torch.ones(200, dtype=torch.int64))
    positions = cache.find(tags)
    assert int((positions >= 0).sum()) == cache.rows == 200, "20 keys a set of 32 ways, in the mean"
    assert len(positions.unique()) == 200
    absent = torch.arange(200, 400)[:, None].repeat(1, columns)
    assert (cache.find(absent) == -1).all()
    if columns == 2:
        assert (cache.find(torch.stack((tags[:, 0], tags[:, 1] + 1), dim=1)) == -1).all(), "another slot's key"


def test_more_rows_than_fit_leave_a_full_cache_of_right_rows() -> None:
    cache = DeviceCache(2 * WAYS, 4, 1, Eviction.LRU, CPU)
    tags = torch.arange(1000)[:, None]
    cache.insert(tags, tags.float().expand(-1, 4), torch.ones(1000, dtype=torch.int64))
    assert cache.rows == cache.capacity == 2 * WAYS
    positions = cache.find(tags)
    inside = positions >= 0
    assert int(inside.sum()) == cache.capacity
    assert cache.use(positions[inside])[:, 0].tolist() == tags[inside, 0].tolist()


@pytest.mark.parametrize("eviction", list(Eviction))
def test_a_request_larger_than_the_cache_keeps_what_it_hit_and_its_most_used_rows(eviction: Eviction) -> None:
    cache = DeviceCache(4, 4, 1, eviction, CPU)
    request(cache, [1, 2, 3, 4])
    request(cache, [1, 5, 5, 5, 6, 6, 7, 7, 8])
    assert (cache.find(torch.tensor([[1], [5], [6], [7], [8], [2]])) >= 0).tolist() == [True] * 4 + [False] * 2


def test_no_room_caches_nothing() -> None:
    cache = DeviceCache(0, 4, 1, Eviction.LRU, CPU)
    tags = torch.arange(5)[:, None]
    cache.insert(tags, tags.float().expand(-1, 4), torch.ones(5, dtype=torch.int64))
    assert (cache.find(tags) == -1).all()
    assert cache.rows == 0


def test_host_table_finds_keys_and_slots() -> None:
    keys = np.array([7, 3, 2**32 - 1, 3, 9])
    slots = np.array([0, 2, 2, 0, 5])
    vectors = np.arange(5, dtype=np.float32)[:, None]
    table = HostTable(keys[:3], None, vectors[:3])
    found, known = table.lookup(torch.tensor([[3], [7], [4], [2**32 - 1], [0]]))
    assert known.tolist() == [True, True, False, True, False]
    assert found[:, 0].tolist() == [1.0, 0.0, 0.0, 2.0, 0.0], "zeros where the table has no row"
    table = HostTable(keys, slots, vectors)
    found, known = table.lookup(torch.tensor([[3, 0], [3, 2], [3, 1], [9, 5], [9, 6], [7, 0], [2**32 - 1, 2]]))
    assert known.tolist() == [True, True, False, True, False, True, True]
    assert found[:, 0].tolist() == [3.0, 1.0, 0.0, 4.0, 0.0, 0.0, 2.0]


def test_empty_table_knows_no_key() -> None:
    for slots in (None, np.zeros(0, dtype=np.int64)):
        table = HostTable(np.zeros(0, dtype=np.int64), slots, np.zeros((0, 4), dtype=np.float32))
        tags = torch.zeros(3, 1 if slots is None else 2, dtype=torch.int64)
        found, known = table.lookup(tags)
        assert torch.equal(found, torch.zeros(3, 4))
        assert not known.any()
