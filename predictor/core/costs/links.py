"""Time a collective that was not measured by its bytes over the links.

The efficiency of the links follows from measured collectives: ``all_reduce`` for ring collectives, ``point_to_point``
for direct messages. A message has two channels to the network (NCCL, src/graph/paths.cc, ncclTopoGetNchannels) and
leaves a third of a 400 Gb/s interface idle; the messages of an all-to-all to many peers fill it as a ring does (48 of
50 GB/s: NVIDIA/nccl-tests, issue 267). Those of a donor are scaled by the ratio of the link bandwidths.
Derivation and check: docs/adr/0013-transfer.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp

from predictor.core.base.errors import PublishedError
from predictor.core.costs.collectives import DEEPEP
from predictor.core.costs.cost import Cost, Source
from predictor.core.costs.operator import Direction, Operator, Shape
from predictor.core.costs.regressors import DirectionModel, Outside
from predictor.core.costs.tree_latency import RING_NETWORK_HOP_US, tree_us
from predictor.core.hardware.hardware import System

# The measured collectives that the efficiency of links is taken from, and those that send directly, not round a ring.
RING, MESSAGE = "all_reduce", "point_to_point"
# Launch of a collective inside a CUDA graph, without a host. Source: NCCL, src/graph/tuning.cc, base latency
# of rings, protocol Simple.
GRAPH_LAUNCH_US = 8.4
DIRECT_COLLECTIVES = (MESSAGE, "all_to_all", DEEPEP)


@dataclass(frozen=True, slots=True)
class LinkUse:
    """Latency and efficiency of a system's links in a measured collective.

    Attributes:
        system: the measured system's name.
        launch_us: of one call.
        hop_us: per latency step inside a node.
        network_hop_us: per latency step between nodes.
        node_efficiency: achieved share of the bandwidth inside a node; None if not measured.
        network_efficiency: achieved share of a network interface's bandwidth; None if not measured.
        host_us_per_byte: of the host that all GPUs of a node share on the way to the network.
    """

    system: str
    launch_us: float
    hop_us: float
    network_hop_us: float
    node_efficiency: float | None
    network_efficiency: float | None
    host_us_per_byte: float


def link_use(model: DirectionModel, system: System) -> LinkUse:
    """Return latency and efficiency of the links from a collective's physics.

    The fit may attribute time to all bytes that a rank sends, which a single topology cannot separate from the bytes
    over a link. Inside a node that time is attributed at the largest measured group, where a GPU drives most of its
    links; between nodes to the network interface if one GPU per node took part, else to the host that they share.
    """
    launch, _, sent, pair, interface, host, hop, network_hop = model.physics
    topologies = model.topologies or ()
    inside = [gpus for nodes, gpus in topologies if nodes == 1]
    between = [gpus for nodes, gpus in topologies if nodes > 1]
    peers = max(inside, default=2) - 1
    evenly = sent + pair / peers  # per byte that a GPU sends in equal shares to all others of the largest group
    if system.links.wiring == "pairwise":
        evenly *= peers
    if between and max(between) == 1:
        interface += sent
    else:
        host += sent
    return LinkUse(
        system=system.name,
        launch_us=launch,
        hop_us=hop,
        network_hop_us=network_hop,
        node_efficiency=1e-3 / (evenly * system.pair_gb_per_s) if inside and evenly > 0.0 else None,
        network_efficiency=1e-3 / (interface * system.links.inter_node_gb_per_s.value)
        if between and interface > 0.0
        else None,
        host_us_per_byte=host if between else 0.0,
    )


@dataclass(frozen=True, slots=True)
class LinkRegressor:
    """Times a collective by its bytes and its latency steps.

    Attributes:
        system: with the links that the bytes cross.
        inside: efficiency inside a node.
        between: efficiency between nodes.
        steps_inside: launch and latency steps inside a node.
        steps_between: launch and latency steps between nodes.
        log_error: half width of the 90 % interval, as a log.
    """

    system: System
    inside: LinkUse
    between: LinkUse
    steps_inside: LinkUse
    steps_between: LinkUse
    log_error: float

    def answer(self, operator: Operator, direction: Direction, shape: Shape) -> Cost:
        """Return the cost of one call: launch, latency steps, and the longer of the bytes inside and between nodes.

        A ring crosses the network once per GPU of a node, so all bytes of a rank but those on its interface stay
        inside the node, and both are sent at the same time. Between nodes an all-reduce takes a tree where that is
        faster, as NCCL does.

        Raises:
            PublishedError: the links inside a node, or between nodes, were not measured.
        """
        _, nodes, gpus = shape
        work = operator.work(shape, direction, 1)
        _, on_interface, on_host, hops, network_hops = work.extras
        staying = work.size_bytes - on_interface
        us = staying * self._node_us_per_byte(gpus) if gpus > 1 and staying > 0.0 else 0.0
        launch_us = self.steps_inside.launch_us
        if nodes > 1:
            crossing_us = on_interface * self._network_us_per_byte() + on_host * self.between.host_us_per_byte
            us = max(us, crossing_us)
            launch_us = max(launch_us, self.steps_between.launch_us)
        per_network_hop = self.steps_between.network_hop_us
        if operator.name not in DIRECT_COLLECTIVES:  # direct messages are all on their way at once
            per_network_hop = max(per_network_hop, RING_NETWORK_HOP_US)
        around_ring = us + self.steps_inside.hop_us * hops + per_network_hop * network_hops
        over_tree = tree_us(us, nodes, gpus) if nodes > 1 and operator.name == RING else around_ring
        us = launch_us + min(around_ring, over_tree)
        return Cost(us, us * exp(-self.log_error), us * exp(self.log_error), Source.ANALYTIC)

    def _node_us_per_byte(self, gpus: int) -> float:
        """Return the time per byte that one of ``gpus`` GPUs of a node sends in equal shares to the others."""
        if self.inside.node_efficiency is None:
            raise PublishedError(
                f"{self.system.name}: no measurement of links inside a node; their efficiency is taken from "
                f"{self.inside.system}"
            )
        peers = 1 if self.system.links.wiring == "switch" else gpus - 1
        return 1e-3 / (self.inside.node_efficiency * self.system.pair_gb_per_s * peers)

    def _network_us_per_byte(self) -> float:
        """Return the time per byte over one network interface."""
        if self.between.network_efficiency is None:
            raise PublishedError(
                f"{self.system.name}: no measurement of the network; its efficiency is taken from {self.between.system}"
            )
        return 1e-3 / (self.between.network_efficiency * self.system.links.inter_node_gb_per_s.value)

    def outside(self, operator: Operator, direction: Direction, shape: Shape) -> Outside | None:
        """Return that the collective itself was not measured."""
        return Outside("operator", None)

    def widest(self, operator: Operator, shape: Shape) -> float:
        """Return the half width of the interval, as a log."""
        return self.log_error
