"""Latency of collectives over many nodes: rings in proportion to the ranks, trees to the logarithm of the nodes.

NCCL takes for each call the algorithm that its own model says is faster. A double binary tree sums 2 · log₂ n messages
up and down n nodes, with a chain inside each, at somewhat less bandwidth; only all-reduce has it.

Source: NCCL 2.28.7, src/graph/tuning.cc, ncclTopoTuneModel; Sanders et al. 2009, doi:10.1016/j.parco.2009.09.001.
"""

from __future__ import annotations

from math import ceil, log2
from typing import NamedTuple


class Protocol(NamedTuple):
    """A tree's latency per step in µs, inside a node (NVLink) and between nodes, and its share of the bandwidth."""

    hop_us: float
    network_hop_us: float
    bandwidth_share: float


# A tree reaches 92 % of a ring's bandwidth; LL128 sends 120 of 128 bytes. Source: as above, hwLatencies and busBw.
SIMPLE = Protocol(4.0, 14.0, 0.92)
LL128 = Protocol(1.25, 8.5, 0.92 * 120 / 128)
# The least that a step between nodes takes in a ring (protocol LL128).
RING_NETWORK_HOP_US = 4.0


def tree_us(moving_us: float, nodes: int, gpus: int) -> float:
    """Return the time of an all-reduce over a tree, the launch left out, by the faster protocol.

    Args:
        moving_us: that its bytes take round a ring.
        nodes: of the group.
        gpus: of the group on each node.

    >>> tree_us(0.0, 2048, 8)
    204.5
    """
    up_and_down = 2 * ceil(log2(nodes))
    return min(
        moving_us / protocol.bandwidth_share + up_and_down * protocol.network_hop_us + 2 * (gpus - 1) * protocol.hop_us
        for protocol in (SIMPLE, LL128)
    )
