"""Collectives over many nodes: an all-reduce takes a tree where a ring's latency is longer."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from predictor.core.base.bundled import REGRESSORS_FOLDER
from predictor.core.costs.collectives import Topology
from predictor.core.costs.published import PublishedSystem, open_system
from predictor.core.costs.tree_latency import LL128, SIMPLE, tree_us

SMALL, LARGE = 1e6, 1e9


@pytest.fixture
def system() -> PublishedSystem:
    return open_system(Path(REGRESSORS_FOLDER) / "H200", "bf16")


def test_a_tree_grows_with_the_logarithm_of_the_nodes() -> None:
    steps = [tree_us(0.0, 2**power, 8) for power in range(1, 12)]
    growth = {round(after - before, 9) for before, after in pairwise(steps)}
    assert growth == {2 * LL128.network_hop_us}
    assert tree_us(1e6, 2, 8) == pytest.approx(1e6 / SIMPLE.bandwidth_share, rel=1e-3)  # large ones take Simple


def test_small_sums_over_many_nodes_take_a_tree_and_large_ones_a_ring(system: PublishedSystem) -> None:
    small, large = (
        [system.collective("all_reduce", size, Topology(nodes, 8)).us for nodes in (2, 16, 256, 2048)]
        for size in (SMALL, LARGE)
    )
    assert small == sorted(small)
    assert small[-1] < 10 * small[0]
    assert large[-1] < 1.3 * large[0]  # a ring's bytes hardly grow, and a tree's latency is small beside them


def test_a_gather_has_no_tree(system: PublishedSystem) -> None:
    shards = [system.collective("all_gather", SMALL / (8 * nodes), Topology(nodes, 8)).us for nodes in (16, 256, 2048)]
    assert shards[2] > 5 * shards[1] > 25 * shards[0] / 5


def test_every_step_between_nodes_takes_time(system: PublishedSystem) -> None:
    few, many = (system.collective("reduce_scatter", 1.0, Topology(nodes, 1)).us for nodes in (8, 64))
    assert many - few >= 56 * 4.0
