"""Time a collective by its bytes over the links, where it was not measured.

The efficiency of the links is read off measured collectives: ``all_reduce`` for everything that goes
round a ring, ``point_to_point`` for everything that is sent straight. It may be another system's: a byte then takes
as much longer as its link is slower. Derivation and check: docs/adr/0013-transfer.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp

from predictor.base.errors import PublishedError
from predictor.costs.cost import Cost, Source
from predictor.costs.hardware import System
from predictor.costs.operator import Direction, Operator, Shape
from predictor.costs.regressors import DirectionModel, Outside

# Who tells how well a collective uses the links. All others go round a ring.
RING, MESSAGE = "all_reduce", "point_to_point"
SENT_STRAIGHT = (MESSAGE, "all_to_all")


@dataclass(frozen=True, slots=True)
class LinkUse:
    """What a measured collective makes of its system's links.

    Attributes:
        system: whose, by name.
        launch_us: to start.
        hop_us: per latency step inside a node.
        network_hop_us: per latency step between nodes.
        node_efficiency: share of the bandwidth inside a node that bytes are sent at; None if not measured.
        network_efficiency: the same of a network interface.
        host_us_per_byte: what all GPUs of a node share on the way out takes per byte.
    """

    system: str
    launch_us: float
    hop_us: float
    network_hop_us: float
    node_efficiency: float | None
    network_efficiency: float | None
    host_us_per_byte: float


def link_use(model: DirectionModel, system: System) -> LinkUse:
    """Read a collective's use of the links off its physics.

    The fit may put bytes into the term of all that a rank sends, which one topology cannot tell from a link's own.
    Inside a node they are read at the largest group, where a GPU drives most of its links. Between nodes they are the
    interface's where one GPU of a node took part, and what the GPUs of a node share where several did.
    """
    launch, _, sent, pair, interface, host, hop, network_hop = model.physics
    topologies = model.topologies or ()
    inside = [gpus for nodes, gpus in topologies if nodes == 1]
    between = [gpus for nodes, gpus in topologies if nodes > 1]
    peers = max(inside, default=2) - 1
    evenly = sent + pair / peers  # per byte that a GPU spreads over all others of the largest group
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
    """Answers a collective from its bytes and its steps.

    Attributes:
        system: whose links they are.
        inside: use of the links inside a node.
        between: use of the network.
        steps_inside: who tells what a start and a step inside a node take.
        steps_between: who tells what a start and a step between nodes take.
        log_error: half width of the 90 % interval, as a log.
    """

    system: System
    inside: LinkUse
    between: LinkUse
    steps_inside: LinkUse
    steps_between: LinkUse
    log_error: float

    def answer(self, operator: Operator, direction: Direction, shape: Shape) -> Cost:
        """Return the cost of one call: its start, its steps, and the slower of the bytes inside and between nodes.

        A ring crosses the network once per GPU of a node, so of the bytes that a rank sends all but those on its
        interface stay inside, and both flow at once.

        Raises:
            PublishedError: no measurement of links of this reach.
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
        us += launch_us + self.steps_inside.hop_us * hops + self.steps_between.network_hop_us * network_hops
        return Cost(us, us * exp(-self.log_error), us * exp(self.log_error), Source.ANALYTIC)

    def _node_us_per_byte(self, gpus: int) -> float:
        """Return what a byte takes that one of ``gpus`` GPUs of a node sends to the others, evenly spread."""
        if self.inside.node_efficiency is None:
            raise PublishedError(
                f"{self.inside.system} lends {self.system.name} links inside a node: none were measured"
            )
        peers = 1 if self.system.links.wiring == "switch" else gpus - 1
        return 1e-3 / (self.inside.node_efficiency * self.system.pair_gb_per_s * peers)

    def _network_us_per_byte(self) -> float:
        """Return what a byte takes over one network interface."""
        if self.between.network_efficiency is None:
            raise PublishedError(f"{self.between.system} lends {self.system.name} a network: none was measured")
        return 1e-3 / (self.between.network_efficiency * self.system.links.inter_node_gb_per_s.value)

    def outside(self, operator: Operator, direction: Direction, shape: Shape) -> Outside | None:
        """Return that the collective was not measured."""
        return Outside("operator", None)

    def widest(self, operator: Operator, shape: Shape) -> float:
        """Return the half width of the interval, as a log."""
        return self.log_error
