"""Collectives: what each moves over a ring, and how one model covers every message size and topology.

A collective is an operator whose shape is (size_bytes, nodes, gpus_per_node). ``size_bytes`` is the buffer of one
rank as NCCL's sample programs count it: the whole tensor for all-reduce, broadcast and point-to-point, all that a rank
sends (its own part included) for all-to-all, the shard that it contributes for all-gather and keeps for reduce-scatter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from predictor.core.costs.operator import Direction, Operator, Shape
from predictor.core.costs.work import Work


@dataclass(frozen=True, slots=True)
class Topology:
    """A group of ranks: so many nodes, the same number of ranks on each.

    Attributes:
        nodes: nodes that it spans.
        gpus_per_node: its ranks on each of them; the largest number where they do not spread evenly.
        switched_as: for a node with a switch, timed by measurements of a pairwise wired node: the GPUs of that node,
            all of which must take part to drive all links; None where the wiring is as measured.
        size: its ranks, where they do not spread evenly; None: nodes × gpus_per_node.
    """

    nodes: int
    gpus_per_node: int
    switched_as: int | None = None
    size: int | None = None

    @property
    def ranks(self) -> int:
        """Return the number of ranks."""
        return self.size if self.size is not None else self.nodes * self.gpus_per_node


# Size and stride of each dimension of a group of ranks, the innermost first.
Dimensions = tuple[tuple[int, int], ...]


def _spanned(base: int, dimensions: Dimensions, gpus_per_node: int) -> int:
    """Return the nodes that a group spans from its first rank ``base`` on."""
    (size, stride), *outer = dimensions
    if not outer:
        last = base + (size - 1) * stride
        return size if stride >= gpus_per_node else last // gpus_per_node - base // gpus_per_node + 1
    ((count, step),) = outer
    bases = [base + i * step for i in range(count)]
    return len({(b + i * stride) // gpus_per_node for b in bases for i in range(size)})


@lru_cache(maxsize=16384)
def _most_nodes(dimensions: Dimensions, gpus_per_node: int, num_gpus: int | None) -> int:
    """Return the nodes that the worst placed group spans; where a group starts within a node decides."""
    extent, stride = dimensions[-1][0] * dimensions[-1][1], dimensions[0][1]
    blocks = gpus_per_node if num_gpus is None else min(gpus_per_node, max(1, num_gpus // extent))
    within = range(min(stride, gpus_per_node))
    starts = {(block * extent + first) % gpus_per_node for block in range(blocks) for first in within}
    return max(_spanned(start, dimensions, gpus_per_node) for start in starts)


@lru_cache(maxsize=16384)
def topology_of(
    dimensions: Dimensions, gpus_per_node: int, switched_as: int | None = None, num_gpus: int | None = None
) -> Topology:
    """Return the topology of the worst placed of all groups of ranks with the same dimensions.

    Ranks fill nodes in order. A group that starts in the middle of a node may span one node more than another group of
    the same size, and all ranks wait for the slowest group.

    Args:
        dimensions: of the group.
        gpus_per_node: ranks on one node.
        switched_as: see ``Topology``.
        num_gpus: all ranks; None: as many as it takes for a group to start anywhere.
    """
    size = prod(count for count, _ in dimensions)
    nodes = _most_nodes(dimensions, gpus_per_node, num_gpus)
    per_node = -(-size // nodes)
    return Topology(nodes, per_node, switched_as, None if nodes * per_node == size else size)


def _ring(sent_per_rank: Callable[[int, int], float], steps: Callable[[int], int]) -> Callable[..., Work]:
    """Return the work of a ring collective from the bytes that each rank sends and the steps that it takes.

    ``extras``: bytes over the links of a pair of GPUs, over one network interface, and through the host that all GPUs
    of a node share; then latency steps inside and between nodes. Inside a node every pair of GPUs has its own links, so
    a ring over g GPUs has g − 1 times the bandwidth of a pair. Between nodes every GPU has its own network interface,
    so g GPUs of a node have g times its bandwidth, but they share the host.
    """

    def work(shape: Shape, direction: Direction, num_multiprocessors: int) -> Work:
        size_bytes, nodes, gpus = shape
        ranks = nodes * gpus
        sent = sent_per_rank(size_bytes, ranks)
        hops = steps(ranks)
        if nodes == 1:
            return Work(0.0, sent, (sent / max(gpus - 1, 1), 0.0, 0.0, float(hops), 0.0))
        inter_hops = max(hops // gpus, 1)
        return Work(0.0, sent, (0.0, sent / gpus, sent, float(hops - inter_hops), float(inter_hops)))

    return work


def _pairwise(shape: Shape, direction: Direction, num_multiprocessors: int) -> Work:
    """Return the work of an all-to-all by pairwise exchange: p − 1 steps, S ÷ p to one other rank in each.

    ``extras`` as in ``_ring``. Of the p − 1 messages of a rank, g − 1 stay inside its node on the links of a pair, and
    p − g leave through its network interface; no message is forwarded.
    """
    size_bytes, nodes, gpus = shape
    ranks = nodes * gpus
    share = size_bytes / ranks
    sent = share * (ranks - 1)
    if nodes == 1:
        return Work(0.0, sent, (share, 0.0, 0.0, float(ranks - 1), 0.0))
    leaving = share * (ranks - gpus)
    return Work(0.0, sent, (0.0, leaving, leaving * gpus, float(gpus - 1), float(ranks - gpus)))


def _messages(shape: Shape, direction: Direction, num_multiprocessors: int) -> Work:
    """Return the work of one message; between nodes, of one from each of g GPUs of a node to the next node at once.

    ``extras`` as in ``_ring``: every GPU has its own network interface, and all g messages share the host.
    """
    size_bytes, nodes, gpus = shape
    sent = float(size_bytes)
    if nodes == 1:
        return Work(0.0, sent, (sent, 0.0, 0.0, 1.0, 0.0))
    return Work(0.0, sent, (0.0, sent, sent * gpus, 0.0, 1.0))


def _collective(name: str, work: Callable[..., Work], source: str) -> Operator:
    return Operator(
        name=name,
        dimensions=("size_bytes", "nodes", "gpus_per_node"),
        work=work,
        directions=(Direction.FORWARD,),
        byte_sizes="fixed",
        launches=(3, 3),
        extra_kinds=("bytes", "bytes", "bytes", "count", "count"),
        source=source,
    )


RING = "ring; Thakur et al. 2005, doi:10.1177/1094342005051521; nccl-tests doc/PERFORMANCE.md"
CHAIN = "pipelined ring from the root, S over each link; Patarasuk and Yuan 2008, doi:10.1016/j.jpdc.2007.11.005"
DEEPEP = "deepep"
PAIRWISE = "pairwise exchange; Thakur et al. 2005, doi:10.1177/1094342005051521, section 5; nccl-tests src/alltoall.cu"

COLLECTIVES = {
    operator.name: operator
    for operator in (
        _collective("all_reduce", _ring(lambda s, p: 2.0 * (p - 1) / p * s, lambda p: 2 * (p - 1)), RING),
        _collective("all_gather", _ring(lambda s, p: float((p - 1) * s), lambda p: p - 1), RING),
        _collective("reduce_scatter", _ring(lambda s, p: float((p - 1) * s), lambda p: p - 1), RING),
        _collective("broadcast", _ring(lambda s, p: float(s), lambda p: p - 1), CHAIN),
        _collective("all_to_all", _pairwise, PAIRWISE),
        _collective("point_to_point", _messages, "one message over one link"),
        _collective(DEEPEP, _pairwise, "as all_to_all, a copy per rank or node; deepseek-ai/DeepEP, csrc/kernels"),
    )
}
# Those of NCCL and MPI; DeepEP is a library of its own.
MESSAGE_PASSING = tuple(name for name in COLLECTIVES if name != DEEPEP)
# A reduce-scatter that was not measured takes the time of an all-gather, which moves the same bytes round the ring.
STANDS_IN_FOR = {"reduce_scatter": "all_gather"}
# Sizes are of one rank's shard.
SHARDED = frozenset({"all_gather", "reduce_scatter"})
# Positions of two of ``_ring``'s extras among a model's physics terms (launch, FLOPs, bytes come first): time per byte
# of one network interface, and of the host that all GPUs of a node share.
INTERFACE_TERM, SHARED_HOST_TERM = 4, 5


def collective_shape(name: str, size_bytes: float, group: Topology) -> Shape:
    """Return the shape under which a collective is timed.

    Behind a switch a GPU drives all its links whatever the size of its group. On the pairwise wired node that was
    measured, only a group of all its GPUs does, so that group is timed, with the same bytes over each link.
    """
    nodes, gpus, whole = group.nodes, group.gpus_per_node, group.switched_as
    if group.size is not None and name in SHARDED:  # total bytes of the true number of ranks
        size_bytes *= (group.size - 1) / (nodes * gpus - 1)
    if nodes > 1 or whole is None or gpus == whole:
        return int(size_bytes), nodes, gpus
    if name == "point_to_point":
        return max(1, int(size_bytes / (whole - 1))), 1, 2
    work = COLLECTIVES[name].work
    sent = work((int(size_bytes), 1, gpus), Direction.FORWARD, 1).size_bytes
    unit = work((1_000_000, 1, whole), Direction.FORWARD, 1).size_bytes
    return max(1, int(1_000_000 * sent / unit)), 1, whole
