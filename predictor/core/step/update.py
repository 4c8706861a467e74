"""Time the update of a stage's parameters, on the GPU and on the host beside it."""

from __future__ import annotations

from typing import NamedTuple

from predictor.core.costs.cost import Cost
from predictor.core.costs.published import PublishedSystem
from predictor.core.step.host import launch_cost, waiting
from predictor.core.step.overlap import longer_cost
from predictor.core.step.task_times import time_tasks
from predictor.core.workload.step_tasks import EndTasks


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
