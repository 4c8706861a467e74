"""Changes that scale or remove work: operators, kernels, host time, launches, traffic."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import NamedTuple

from predictor.core.base.errors import ConfigError, nearest
from predictor.core.base.words import counted
from predictor.core.timeline.graph import GraphTask
from predictor.replay.files.events import UNKNOWN
from predictor.replay.graph.local_graph import (
    CARRIED,
    NO_OPERATOR,
    Edge,
    EdgeKind,
    LocalGraph,
    TaskKind,
    TracedOperator,
    TracedTask,
)
from predictor.replay.whatif.setting import Changed, Setting, Touched
from predictor.replay.whatif.traced_step import ADDED, Role, TracedStep, operators


class Call(NamedTuple):
    """A runtime call: the position of its rank, and its own in the trace's events."""

    rank: int
    event: int


def launched(step: TracedStep) -> dict[Call, list[int]]:
    """Return every call that launches, with what it started on a GPU; on a CPU there is none."""
    calls: dict[Call, list[int]] = {}
    arrivals = set(step.arrivals.values())
    for position, role in enumerate(step.roles):
        traced = None if position in arrivals else _traced(step, position)
        if traced is not None and traced.call != UNKNOWN:
            calls.setdefault(Call(role.rank, traced.call), []).append(position)
    return calls


def launching_only(step: TracedStep, positions: Iterable[int]) -> list[Call]:
    """Return the calls that launch some tasks and nothing else."""
    removed = set(positions)
    return [call for call, started in launched(step).items() if removed.issuperset(started)]


def own_tasks(step: TracedStep, calls: Iterable[Call]) -> Mapping[Call, list[int]]:
    """Return the tasks of a thread that calls are, in order: some wait in between, some take no time and have none."""
    own: dict[Call, list[int]] = {call: [] for call in calls}
    for position, role in enumerate(step.roles):
        traced = _traced(step, position)
        if traced is not None and role.kind in (TaskKind.HOST, TaskKind.WAIT):
            parts = own.get(Call(role.rank, traced.event))
            if parts is not None:
                parts.append(position)
    return own


def without_waits(step: TracedStep, is_dropped: Callable[[int, Edge], bool]) -> TracedStep:
    """Return the step in which some calls do not wait.

    Args:
        step: to change.
        is_dropped: whether the call of an edge of a rank, by its position, does not wait.
    """
    places = step.places()
    changed = {}
    for rank, local in enumerate(step.ranks):
        for number, task in enumerate(local.tasks):
            waits = [edge for edge in task.after if edge.kind is EdgeKind.SYNC and is_dropped(rank, edge)]
            if waits:
                position = places[rank][number]
                changed[position] = _not_after(step.tasks[position], {places[rank][edge.task] for edge in waits})
    return step.with_tasks(changed, {position: step.costs[position] for position in changed if position in step.costs})


def _not_after(task: GraphTask, dropped: Collection[int]) -> GraphTask:
    """Return a task that does not wait for some; of the first of a thread, which nothing else starts, they stay."""
    kept = [number for number, before in enumerate(task.after) if before not in dropped]
    if not kept:
        return task
    lags = tuple(task.lags_us[number] for number in kept) if task.lags_us else ()
    return task._replace(after=tuple(task.after[number] for number in kept), lags_us=lags)


def _traced(step: TracedStep, position: int) -> TracedTask | None:
    role = step.roles[position]
    return None if role.task == ADDED else step.ranks[role.rank].tasks[role.task]


ON_DEVICE = frozenset({TaskKind.KERNEL, TaskKind.COPY, TaskKind.COLLECTIVE})
MOST_NAMES = 6


def scaled(step: TracedStep, positions: Iterable[int], factor: float) -> TracedStep:
    """Return the step with some tasks' times multiplied; of a factor of 0 what starts them takes no time either."""
    changed, costs = {}, {}
    for position in positions:
        task = step.tasks[position]
        lags = () if factor == 0.0 else task.lags_us
        changed[position] = task._replace(duration_us=task.duration_us * factor, lags_us=lags)
        if position in step.costs:
            costs[position] = step.costs[position] * factor
    return step.with_tasks(changed, costs)


def touched(before: TracedStep, after: TracedStep, positions: Iterable[int], what: str, *notes: str) -> Changed:
    """Return a changed step with the times of what was changed."""
    listed = list(positions)
    us = [sum(step.tasks[position].duration_us for position in listed) for step in (before, after)]
    return Changed(after, Touched(what, us[0], us[1], notes))


def matches(pattern: str, operator: TracedOperator) -> bool:
    """Return whether a pattern is that of an operator's name, or of an annotation or module around it."""
    return fnmatchcase(operator.name, pattern) or any(fnmatchcase(scope, pattern) for scope in operator.scope)


def matching(step: TracedStep, setting: Setting) -> list[tuple[int, int, TracedOperator]]:
    """Return the operators of a pattern with those inside and their backward ones, each with rank and position.

    Operators come by their start, so those around and forward ones come first.

    Raises:
        ConfigError: there are none; the message says the nearest names.
    """
    chosen: list[set[int]] = [set() for _ in step.ranks]
    selected = []
    for rank, position, operator in operators(step):
        if operator.parent in chosen[rank] or operator.forward in chosen[rank] or matches(setting.pattern, operator):
            chosen[rank].add(position)
            selected.append((rank, position, operator))
    if not selected:
        known = {operator.name for *_, operator in operators(step)}
        scopes = {scope for *_, operator in operators(step) for scope in operator.scope}
        raise nothing_matches(setting, "operator or scope", known | scopes)
    return selected


def nothing_matches(setting: Setting, what: str, known: set[str]) -> ConfigError:
    """Return the error of a pattern that nothing in the trace has."""
    if not known:
        return ConfigError(f"--set {setting.text}: the trace has no {what}")
    close = nearest(setting.pattern.strip("*"), known)
    names = sorted(known, key=len)[:MOST_NAMES]
    there = "" if close else f" There are {', '.join(names)}{' …' if len(known) > MOST_NAMES else ''}"
    return ConfigError(f"--set {setting.text}: no {what} of the step matches {setting.pattern}.{close}{there}")


def change_operators(step: TracedStep, setting: Setting) -> Changed:
    """Scale or remove operators with all that they started, forward and backward.

    Scaled is what computes: kernels, copies and collectives on a GPU, the thread's time on a CPU. Removed is all of it,
    with launches and waits for the GPU.
    """
    selected = matching(step, setting)
    removes = setting.removes
    factor = 0.0 if removes else setting.factor()
    places = step.places()
    positions = sorted(
        {
            places[rank][task]
            for rank, _, operator in selected
            for task in operator.tasks
            if removes or _computes(step.roles[places[rank][task]])
        }
    )
    members = {(rank, position) for rank, position, _ in selected}
    outer = [operator.name for rank, _, operator in selected if (rank, operator.parent) not in members]
    names = set(outer)
    if not any(step.tasks[position].duration_us for position in positions):
        raise ConfigError(f"--set {setting.text}: {', '.join(sorted(names)[:MOST_NAMES])} ran nothing that takes time")
    what = f"{counted(len(outer), 'call')} of {counted(len(names), 'operator')}, forward and backward"
    after = scaled(step, positions, factor)
    if removes:
        after = without_waits(after, lambda rank, edge: (rank, edge.operator) in members)
    return touched(step, after, positions, what)


def _computes(role: Role) -> bool:
    return role.computes or role.kind is TaskKind.COLLECTIVE


def change_kernels(step: TracedStep, setting: Setting) -> Changed:
    """Scale or remove kernels and copies by their names; a removed one is not launched or waited for either.

    A thread waits for what ran before a removed kernel still. Not so for a removed copy: PyTorch waits for the stream
    in the operator that copies and for that copy's sake (aten/src/ATen/native/cuda/Copy.cu, copy_kernel_cuda).
    """
    arrivals = set(step.arrivals.values())
    on_device = (
        at
        for at, role in enumerate(step.roles)
        if role.kind in ON_DEVICE and at not in arrivals and step.tasks[at].name != CARRIED
    )
    known = {position: step.tasks[position].name for position in on_device}
    positions = [position for position, name in known.items() if fnmatchcase(name, setting.pattern)]
    if not positions:
        raise nothing_matches(setting, "kernel", set(known.values()))
    calls = launching_only(step, positions) if setting.removes else []
    launches = [at for parts in own_tasks(step, calls).values() for at in parts]
    after = scaled(step, [*positions, *launches], 0.0 if setting.removes else setting.factor())
    if setting.removes:
        after = _without_waits_for(after, positions, calls)
    what = counted(len(positions), "kernel") + (f" and {counted(len(calls), 'launch')}" if calls else "")
    return touched(step, after, [*positions, *launches], what)


def _without_waits_for(step: TracedStep, removed: Iterable[int], calls: Iterable[Call]) -> TracedStep:
    """Return the step in which calls do not wait, nor do operators for the copies among what they no longer start."""
    roles = [step.roles[position] for position in removed]
    copies = {(role.rank, role.task) for role in roles if role.kind is TaskKind.COPY}
    silent = set(calls)

    def is_dropped(rank: int, edge: Edge) -> bool:
        operator = step.ranks[rank].tasks[edge.task].operator
        is_for_copy = (rank, edge.task) in copies and operator != NO_OPERATOR and edge.operator == operator
        return is_for_copy or Call(rank, edge.call) in silent

    return without_waits(step, is_dropped)


def _is_host(local: LocalGraph, role: Role) -> bool:
    """Return whether a task is the host's own time: on a CPU, where operators compute, that between them."""
    return role.kind is TaskKind.HOST and not (local.backend == "cpu" and role.computes)


def change_host(step: TracedStep, setting: Setting) -> Changed:
    """Scale all time of host threads."""
    return _scale_all(step, setting, lambda role: _is_host(step.ranks[role.rank], role), "part", "host time")


def change_launch(step: TracedStep, setting: Setting) -> Changed:
    """Give every runtime call that launches a kernel the same time; what it waits is beside it."""
    us = setting.number()
    launching = launched(step)
    calls = [call for call, started in launching.items() if any(_is_kernel(step.roles[at]) for at in started)]
    parts = [tasks for tasks in own_tasks(step, calls).values() if tasks]
    if not parts:
        raise ConfigError(f"--set {setting.text}: no kernel of the step was launched; on a CPU nothing is")
    after = {at: step.tasks[at]._replace(duration_us=0.0) for tasks in parts for at in tasks[:-1]}
    after |= {tasks[-1]: step.tasks[tasks[-1]]._replace(duration_us=us) for tasks in parts}
    return touched(step, step.with_tasks(after), after, counted(len(parts), "launch"))


def _is_kernel(role: Role) -> bool:
    return role.kind is not TaskKind.COPY


def change_communication(step: TracedStep, setting: Setting) -> Changed:
    """Scale the time of all collectives and messages."""
    return _scale_all(step, setting, lambda role: role.kind is TaskKind.COLLECTIVE, "collective", "collectives")


def _scale_all(
    step: TracedStep, setting: Setting, is_meant: Callable[[Role], bool], noun: str, missing: str
) -> Changed:
    arrivals = set(step.arrivals.values())
    positions = [
        at
        for at, role in enumerate(step.roles)
        if is_meant(role) and at not in arrivals and step.tasks[at].name != CARRIED
    ]
    if not positions:
        raise ConfigError(f"--set {setting.text}: the step has no {missing}")
    return touched(step, scaled(step, positions, setting.factor()), positions, counted(len(positions), noun))
