"""Topologies (nodes × ranks per node) of an allocation, the ranks of each, and the check of the ranks' placement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from microbench.collectives.errors import CollectiveError
from predictor.core.costs.collectives import Topology


@dataclass(frozen=True, slots=True)
class Seat:
    """Where one rank runs, as the rank itself sees it."""

    rank: int
    size: int
    node: str


def _steps(most: int) -> list[int]:
    """Return 1, 2, 4 … and ``most`` itself.

    >>> _steps(6)
    [1, 2, 4, 6]
    """
    return sorted({2**power for power in range(most.bit_length()) if 2**power <= most} | {most})


def offered(nodes: int, ranks_per_node: int) -> list[Topology]:
    """Return the topologies of at least two ranks: every power of two in each direction, and all of it.

    >>> [(t.nodes, t.gpus_per_node) for t in offered(2, 2)]
    [(1, 2), (2, 1), (2, 2)]
    """
    pairs = [(n, g) for n in _steps(nodes) for g in _steps(ranks_per_node) if n * g >= 2]
    return [Topology(n, g) for n, g in pairs]


def check_seats(seats: Sequence[Seat], nodes: int, ranks_per_node: int) -> dict[str, list[int]]:
    """Return the ranks of each node, in the order of their first rank, after checking their number and placement.

    Raises:
        CollectiveError: ranks disagree about their number, or are placed otherwise than requested.
    """
    sizes = sorted({seat.size for seat in seats})
    expected = nodes * ranks_per_node
    if sizes != [expected] or sorted(seat.rank for seat in seats) != list(range(expected)):
        raise CollectiveError(
            f"ranks disagree: {expected} were requested, they count {', '.join(map(str, sizes))}; "
            "the launcher and mpi4py use different MPIs (in Slurm try --launcher with another --mpi)"
        )
    by_node: dict[str, list[int]] = {}
    for seat in sorted(seats, key=lambda seat: seat.rank):
        by_node.setdefault(seat.node, []).append(seat.rank)
    counts = {node: len(ranks) for node, ranks in by_node.items()}
    if len(counts) != nodes or set(counts.values()) != {ranks_per_node}:
        seen = ", ".join(f"{node}: {count}" for node, count in counts.items())
        raise CollectiveError(
            f"ranks lie on {len(counts)} nodes ({seen}); requested were {nodes} nodes × {ranks_per_node} ranks. "
            "Start it through srun --nodes --ntasks-per-node, or correct --nodes and --ranks-per-node"
        )
    return by_node


def members(topology: Topology, nodes: dict[str, list[int]]) -> list[int]:
    """Return the ranks that form a topology: the first ranks of the first nodes.

    >>> members(Topology(2, 1), {"a": [0, 1], "b": [2, 3]})
    [0, 2]
    """
    return [rank for ranks in list(nodes.values())[: topology.nodes] for rank in ranks[: topology.gpus_per_node]]
