"""Folds of a layer's rows: tasks of each pass, parameters, kept bytes, multiplications."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from predictor.core.costs.operator import Direction
from predictor.core.rows import Behind, Kind, Module, Role, Row
from predictor.core.workload.rank_parameters import RankParameters
from predictor.core.workload.tasks import BACKWARD, FORWARD, Overlap, PassTasks, Task, share_of

WITH_WEIGHTS = (Kind.PRODUCT, Kind.ADAPTER)


def _behind(rows: Behind, direction: Direction) -> list[Task]:
    tasks = [task for row in rows.rows if (task := row.task(direction)) is not None]
    return tasks if rows.share == 1.0 else share_of(tasks, rows.share)


def pass_tasks(rows: Iterable[Row], direction: Direction) -> PassTasks:
    """Return one direction of rows: tasks in turn, equal ones as one, and traffic beside them."""
    tasks: dict[tuple[object, ...], Task] = {}
    hidden: dict[int, tuple[Behind, list[Task]]] = {}
    for row in rows:
        task = row.task(direction)
        if task is None:
            continue
        if row.behind is None:
            key = task.name, id(task.operator), task.direction, task.shape, task.part
            equal = tasks.get(key)
            if equal is not None:
                task = task._replace(times=equal.times + task.times, launches=equal.launches + task.launches)
            tasks[key] = task
        else:
            hidden.setdefault(id(row.behind), (row.behind, []))[1].append(task)
    overlaps = [
        Overlap(traffic, _behind(behind, direction), behind.slows, behind.buckets, behind.own_link)
        for behind, traffic in hidden.values()
    ]
    return PassTasks(list(tasks.values()), overlaps)


def recomputed_tasks(rows: Iterable[Row]) -> PassTasks:
    """Return the part of the forward pass that runs again before the backward pass."""
    return pass_tasks(
        [row._replace(forward=row.forward.scaled(row.again)) for row in rows if row.again and row.forward is not None],
        FORWARD,
    )


def weight_gradient_tasks(rows: Iterable[Row], measured: Collection[str]) -> list[Task]:
    """Return the part of a backward pass that makes the gradients of weights, for which only the optimizer waits.

    ``measured``: see ``Row.input_gradient``. Source: Qi et al. 2023, arXiv:2401.10241.
    """
    trained = [row for row in rows if row.trains]
    own = [row.weight_gradient(measured) if row.kind in WITH_WEIGHTS else row for row in trained]
    tasks = [row.task(BACKWARD) for row in own if row.kind in WITH_WEIGHTS or row.kind is Kind.BIAS_GRADIENT]
    return [task for task in tasks if task is not None]


def parameters(rows: Iterable[Row]) -> RankParameters:
    """Return the parameters of rows on one rank, by what trains them and who sums their gradients."""
    held = [0] * len(RankParameters._fields)
    for row in rows:
        if row.weights:
            held[row.routed + 2 * (not row.trains)] += int(row.weights)
        if row.narrow or (row.kind is Kind.PRODUCT and row.trains):
            held[row.routed + (4 if row.narrow else 6)] += int(row.weights)
    return RankParameters(*held)


def multiplications(rows: Iterable[Row]) -> float:
    """Return the multiplications of a token in one forward pass, in model FLOPs."""
    return sum(row.multiplications for row in rows)


class KeptBytes(NamedTuple):
    """Bytes that a layer keeps from its forward to its backward pass, by tensor and module."""

    tensors: dict[tuple[Module, Role], float]

    @property
    def total(self) -> float:
        """Return all of it."""
        return sum(self.tensors.values())

    def of(self, *roles: Role, modules: Sequence[Module] = ()) -> float:
        """Return the bytes of some tensors; of some modules, or of all."""
        return sum(
            size_bytes
            for (module, role), size_bytes in self.tensors.items()
            if role in roles and (not modules or module in modules)
        )


def kept_bytes(rows: Iterable[Row]) -> KeptBytes:
    """Return what a layer keeps."""
    tensors: dict[tuple[Module, Role], float] = {}
    for row in rows:
        for role, size_bytes in row.keeps:
            key = row.module, role
            tensors[key] = tensors.get(key, 0.0) + size_bytes
    return KeptBytes(tensors)


def waits_for_counts(rows: Iterable[Row]) -> list[Task]:
    """Return the tasks of a forward pass that have an expert's tokens as rows."""
    kinds = (Kind.PRODUCT, Kind.CAST, Kind.BIAS)
    counted = [row for row in rows if row.module is Module.EXPERTS and row.kind in kinds and row.behind is None]
    return pass_tasks(counted, FORWARD).tasks
