"""Traffic of a measured collective, and its time as a function of the number of ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from predictor.core.costs.collectives import COLLECTIVES, SHARDED
from predictor.core.costs.operator import Direction
from predictor.replay.files.record_model import RecordError
from predictor.replay.graph.global_graph import JoinedCollective, Member
from predictor.replay.graph.local_graph import LocalGraph

# Time in µs of a collective by its name, size in bytes as in ``Collective.size_bytes``, and ranks.
CollectiveTime = Callable[[str, int, int], float]
Scale = Callable[[float], float]
UNIT_BYTES = 2**20  # bytes sent are proportional to the size, which need not be whole


def ring_traffic(name: str, size_bytes: int, ranks: int) -> float:
    """Return the bytes that a rank sends in a collective over a ring, as a time at 1 byte per µs.

    Scaled to a measured transfer it tells the time on other ranks over links of the same bandwidth: latency, which also
    grows with the ranks, is left out. A collective of another name sends its size once.

    Args:
        name: of the collective.
        size_bytes: of the operation's larger side, so all ranks' shards of an all-gather or a reduce-scatter.
        ranks: that take part.

    Source: predictor/core/costs/collectives.py.

    >>> ring_traffic("all_reduce", 1000, 4)
    1500.0
    """
    return bytes_and_steps(name, size_bytes, ranks)[0] if name in COLLECTIVES else float(size_bytes)


def bytes_and_steps(name: str, size_bytes: float, ranks: int) -> tuple[float, float]:
    """Return the bytes that each rank sends in a collective and its latency steps, over one kind of link.

    Args:
        name: a key of ``predictor.core.costs.collectives.COLLECTIVES``.
        size_bytes: of the operation's larger side.
        ranks: that take part.
    """
    work = COLLECTIVES[name].work((UNIT_BYTES, 1, ranks), Direction.FORWARD, 1)
    return work.size_bytes / UNIT_BYTES * shard(name, size_bytes, ranks), work.extras[3]


def shard(name: str, size_bytes: float, ranks: int) -> float:
    """Return the size as ``predictor.core.costs.collectives`` counts it, from that of the operation's larger side."""
    return size_bytes / ranks if name in SHARDED else size_bytes


def alone(local: LocalGraph) -> Iterator[JoinedCollective]:
    """Yield the collectives of one rank as if it were the only one, all of their measured time being transfer."""
    for collective in local.collectives:
        us = local.tasks[collective.task].duration_us
        ranks = len(collective.group_ranks) or local.world_size
        member = Member(local.rank, collective.task, us, (0,))
        yield JoinedCollective(collective.name, collective.group, collective.size_bytes, ranks, (member,), us)


def transfer_scale(collective: JoinedCollective, ranks: int, collective_us: CollectiveTime) -> Scale:
    """Return how a transfer's time changes from the measured number of ranks to another one.

    Raises:
        RecordError: it was measured on one rank, which no ratio leads away from.
    """
    if ranks == 1:
        return lambda us: 0.0
    size = max(1, collective.size_bytes)
    new = collective_us(collective.name, size, ranks)
    old = collective_us(collective.name, size, collective.ranks) if collective.ranks > 1 else 0.0
    if old <= 0.0:
        raise RecordError(
            f"{collective.name} of {collective.size_bytes} bytes was measured on {collective.ranks} ranks, where it "
            f"takes no time to scale to {ranks}; give a trace of 2 ranks or more"
        )
    return lambda us: us * new / old
