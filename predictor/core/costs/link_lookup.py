"""The regressor of a collective on a system's links: measured here, measured on a donor's links, or by its bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from predictor.core.costs.collectives import COLLECTIVES, DEEPEP, SHARDED
from predictor.core.costs.folder import RegressorFiles
from predictor.core.costs.links import (
    DIRECT_COLLECTIVES,
    GRAPH_LAUNCH_US,
    MESSAGE,
    RING,
    LinkRegressor,
    LinkUse,
    link_use,
)
from predictor.core.costs.operator import Direction, Operator, Shape
from predictor.core.costs.regressors import DirectionRegressor, Regressor
from predictor.core.costs.stand_ins import Call
from predictor.core.costs.transfer import ByReach, relinked
from predictor.core.costs.transfer_errors import transfer_errors
from predictor.core.hardware.hardware import System

# (field of Transfer, accepted precisions besides the system's) → the donor's files, None where it has none.
Donors = Callable[[str, Sequence[str]], RegressorFiles | None]
Lookup = Callable[[Operator, Direction], Regressor | None]


def collective_regressors(
    collective: Operator, hardware: System, files: RegressorFiles, donor: Donors, in_graphs: bool
) -> dict[Direction, Regressor]:
    """Return a collective's regressor over a system's links: its own, or one by bytes.

    Args:
        collective: the collective; DeepEP's exchange, where it was not measured, takes the time of NCCL's.
        hardware: the system whose links it crosses.
        files: the system's own regressors.
        donor: finds the donor's.
        in_graphs: collectives are launched inside CUDA graphs.
    """
    forward = Direction.FORWARD
    if collective.name == DEEPEP and not files.read(collective):
        collective = COLLECTIVES["all_to_all"]
    measured = files.read(collective).get(forward)
    own = None if measured is None else relinked(measured, files.hardware, hardware)
    if measured is not None and own is not None and hardware.links.wiring == files.hardware.links.wiring:
        if any(nodes > 1 for nodes, _ in measured.model.topologies or ()) or hardware.transfer is None:
            return {forward: own}
        # Measured inside a node only: links there tell nothing of the network.
        between = _by_links(collective, hardware, files, donor, in_graphs)
        return {forward: own if between is None else ByReach(own, between)}
    by_links = _by_links(collective, hardware, files, donor, in_graphs)
    if by_links is None:
        return {}
    return {forward: by_links if own is None else ByReach(by_links, own)}


def _by_links(
    collective: Operator, hardware: System, files: RegressorFiles, donor: Donors, in_graphs: bool
) -> LinkRegressor | None:
    """Return the regressor of a collective by its bytes; None where the links were not measured."""
    bytes_as = MESSAGE if collective.name in DIRECT_COLLECTIVES else RING
    steps_as = MESSAGE if collective.name == MESSAGE else RING
    inside = _link_use("intra_node", bytes_as, files, donor)
    steps_inside = _link_use("intra_node", steps_as, files, donor)
    steps_between = _link_use("inter_node", steps_as, files, donor)
    between = _fuller(steps_between, _link_use("inter_node", bytes_as, files, donor))
    if inside is None or between is None or steps_inside is None or steps_between is None:
        return None
    if in_graphs:
        steps_inside, steps_between = (
            replace(use, launch_us=min(use.launch_us, GRAPH_LAUNCH_US)) for use in (steps_inside, steps_between)
        )
    error = transfer_errors().collectives["alike" if bytes_as == steps_as else "unlike"]
    return LinkRegressor(hardware, inside, between, steps_inside, steps_between, error)


def _fuller(ring: LinkUse | None, message: LinkUse | None) -> LinkUse | None:
    """Return the use that fills a network interface more: messages to many peers fill it no less than one of them."""
    if ring is None or message is None:
        return ring or message
    return max(ring, message, key=lambda use: use.network_efficiency or 0.0)


def _link_use(role: str, name: str, files: RegressorFiles, donor: Donors) -> LinkUse | None:
    """Return latency and efficiency of one role's links in a collective, measured here, else at the donor."""
    latency_only = None
    for candidate in (files, donor(role, ("fp16", "bf16", "fp32"))):
        measured = candidate.read(COLLECTIVES[name]).get(Direction.FORWARD) if candidate else None
        if candidate is None or measured is None:
            continue
        use = link_use(measured.model, candidate.hardware)
        if (use.node_efficiency if role == "intra_node" else use.network_efficiency) is not None:
            return use
        latency_only = latency_only or use
    return latency_only


def half_of_all_reduce(lookup: Lookup, operator: Operator, direction: Direction, shape: Shape) -> Call | None:
    """Return half an all-reduce for a gather or scatter if its size and topology are closer to the measured ones.

    A ring all-reduce is a reduce-scatter and an all-gather of the same bytes. Its error is smaller than that of a
    farther extrapolation in size, and inside a node than that of a topology that was not measured: the links of a
    pair say little about those of four GPUs. Between nodes the physics extrapolates over topologies.
    """
    if operator.name not in SHARDED:
        return None
    all_reduce = COLLECTIVES["all_reduce"]
    own, whole = lookup(operator, direction), lookup(all_reduce, direction)
    if not isinstance(own, DirectionRegressor) or not isinstance(whole, DirectionRegressor):
        return None
    size_bytes, nodes, gpus = shape
    same = (size_bytes * nodes * gpus, nodes, gpus)
    reach = own.outside(operator, direction, shape)
    if reach is None or not whole.has_measured(same) or (nodes > 1 and not own.has_measured(shape)):
        return None
    other = whole.outside(all_reduce, direction, same)
    if other is not None and own.has_measured(shape) and (other.factor or 1.0) >= (reach.factor or 1.0):
        return None
    return Call(all_reduce, same, 0.5, whole, stands_in=True)
