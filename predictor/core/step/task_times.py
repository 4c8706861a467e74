"""Time tasks in sequence, traffic that overlaps with them, and the update of a stage's parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from predictor.core.costs.cost import ZERO, Cost, Source
from predictor.core.costs.interference import NO_SLOWDOWN, Call, Slowdown, calibrated_slowdown, slowdown
from predictor.core.costs.published import PublishedSystem
from predictor.core.step.host import launch_cost, waiting
from predictor.core.step.overlap import longer_cost, overlapped, shorter_cost, without_part
from predictor.core.workload.step_tasks import EndTasks
from predictor.core.workload.tasks import Overlap, Part, Task


def time_tasks(system: PublishedSystem, tasks: Sequence[Task]) -> Cost:
    """Return the cost of tasks in sequence."""
    if not tasks:
        return ZERO
    us = low_us = high_us = 0.0
    source = Source.MEASURED
    for _, operator, direction, shape, times, _, _ in tasks:
        cost = system.cost(operator, direction, shape)
        us += cost.us * times
        low_us += cost.low_us * times
        high_us += cost.high_us * times
        if cost.source > source:
            source = cost.source
    return Cost(us, low_us, high_us, source)


def contention_slowdown(system: PublishedSystem, traffic: Sequence[Task]) -> Slowdown:
    """Return how many times as long tasks take beside traffic."""
    calls = [
        Call(operator, shape, system.cost(operator, direction, shape).us * times)
        for _, operator, direction, shape, times, _, _ in traffic
    ]
    return calibrated_slowdown(slowdown(system.hardware, calls), system.hardware)


class OverlapTime(NamedTuple):
    """Traffic beside a pass's tasks.

    Attributes:
        exposed: what outlasts them, by part.
        hidden: what they hide, by part.
        slowed: how much longer they take.
    """

    exposed: dict[Part, Cost]
    hidden: dict[Part, Cost]
    slowed: Cost


def _add(costs: dict[Part, Cost], part: Part, cost: Cost) -> None:
    costs[part] = costs[part] + cost if part in costs else cost


def _divided(cost: Cost, by: Slowdown) -> Cost:
    """Return the work that kernels do beside traffic of a duration."""
    return Cost(cost.us / by.factor, cost.low_us / by.high, cost.high_us / by.low, cost.source)


def time_overlaps(system: PublishedSystem, computing: Cost, overlaps: Sequence[Overlap]) -> OverlapTime:
    """Return the exposed and the hidden traffic beside a pass's tasks, and how it slows them.

    Args:
        system: times the traffic.
        computing: time of the pass's computation.
        overlaps: in the order in which they hide behind it.
    """
    exposed: dict[Part, Cost] = {}
    hidden: dict[Part, Cost] = {}
    slowed = ZERO
    for overlap in overlaps:
        if not overlap.traffic:
            continue
        traffic, behind = time_tasks(system, overlap.traffic), time_tasks(system, overlap.behind)
        slower = contention_slowdown(system, overlap.traffic) if overlap.slows else NO_SLOWDOWN
        added = overlapped(traffic, shorter_cost(behind, computing), slower, overlap.buckets)
        within = without_part(traffic, added.exposed)
        if not overlap.own_link:
            computing = without_part(computing, _divided(within, slower))
        part = overlap.traffic[0].part
        _add(exposed, part, added.exposed)
        _add(hidden, part, within)
        if added.slowed.high_us:
            slowed = slowed + added.slowed
    return OverlapTime(exposed, hidden, slowed)


class UpdateTime(NamedTuple):
    """An update: its time, and its parts (name, µs) in turn where the host's part is the longer one."""

    cost: Cost
    parts: tuple[tuple[str, float], ...] = ()


def _launched(system: PublishedSystem, end: EndTasks) -> Cost:
    """Time the GPU's own update with what the device waits for the host: beside its kernels and where it is read."""
    kernels, hardware = time_tasks(system, end.optimizer), system.hardware
    beside = waiting(launch_cost(hardware, end.launches, backward=False), kernels, synchronized=False)
    return kernels + beside + launch_cost(hardware, end.exposed_launches, backward=False)


def time_update(system: PublishedSystem, end: EndTasks) -> UpdateTime:
    """Time a stage's update: the GPU's own and the host's run beside each other."""
    own, on_host = _launched(system, end), end.on_host
    if on_host is None:
        return UpdateTime(own)
    down, update, up = (time_tasks(system, tasks) for tasks in on_host[:3])
    whole = longer_cost(longer_cost(down, up), update) if on_host.overlaps else down + update + up
    if on_host.overlaps or whole.us < own.us:
        return UpdateTime(longer_cost(own, whole))
    names = ("gradients to host", "update on the host", "weights from host")
    parts = tuple(zip(names, (down.us, update.us, up.us), strict=True))
    return UpdateTime(longer_cost(own, whole), parts)
