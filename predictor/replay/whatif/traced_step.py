"""One traced step as a value that changes apply to: the graphs of its ranks, and the tasks that a replay times."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from predictor.core.costs.cost import Cost, Source
from predictor.core.timeline.graph import GraphReplay, GraphTask, replay_graph, task_ends_us
from predictor.core.timeline.spans import Span
from predictor.replay.graph.global_graph import GlobalGraph
from predictor.replay.graph.global_replay import is_computing
from predictor.replay.graph.local_graph import (
    NO_OPERATOR,
    Collective,
    LocalGraph,
    OperatorPass,
    TaskKind,
    TracedOperator,
)
from predictor.replay.graph.steady_state import SteadyReplay, steady_replay, steady_step_us

ADDED = -1
MAIN_ROW = 0  # of a graph: the thread that the step runs on


class Role(NamedTuple):
    """What a task of the replay stands for.

    Attributes:
        rank: position of its graph in ``TracedStep.ranks``.
        task: position in that graph's tasks; ADDED: a change added it.
        kind: what it occupies.
        step_pass: of the operator that it belongs to; other: of none.
        operator: name of the innermost operator; the task's own where it belongs to none.
        computes: it is work of the device: a kernel or copy on a GPU, time inside an operator on a CPU.
    """

    rank: int
    task: int
    kind: TaskKind
    step_pass: OperatorPass
    operator: str
    computes: bool


@dataclass(frozen=True, slots=True)
class TracedStep:
    """A step of every traced rank, as measured or changed.

    Attributes:
        ranks: their graphs, as measured.
        tasks: what a replay times; a removed task stays, with no duration, so that positions do not move.
        roles: of every task.
        measured_us: the step as the profiler measured it, the longest of the ranks'; where no device lags behind its
            host, from the start of the first rank to the end of the last one.
        arrivals: of a collective that several traced ranks share, the position of this rank's arrival at it by the
            position of its transfer, which begins when all have arrived.
        meetings: of every such collective the positions of its transfers.
        starts_us: of every rank's step, after the first rank's.
        costs: of tasks whose time is no longer a measured one, by position.
        added: collectives of a change, by position; their ``task`` is ADDED.
        replaced: positions of the collectives that they stand for.
        overlaps: buckets are reduced beside the backward pass, where it was not changed otherwise.
    """

    ranks: Sequence[LocalGraph]
    tasks: Sequence[GraphTask]
    roles: Sequence[Role]
    measured_us: float
    arrivals: Mapping[int, int] = field(default_factory=dict)
    meetings: Sequence[tuple[int, ...]] = ()
    starts_us: Sequence[float] = (0.0,)
    costs: Mapping[int, Cost] = field(default_factory=dict)
    added: Mapping[int, Collective] = field(default_factory=dict)
    replaced: Collection[int] = frozenset()
    overlaps: bool = True

    @property
    def is_behind(self) -> bool:
        """Return whether a device ran earlier steps in this one, or this one behind its host's end."""
        return any(any(local.backlog_us) for local in self.ranks)

    def cost(self, position: int) -> Cost:
        """Return a task's time: measured, unless a change gave it a cost."""
        us = self.tasks[position].duration_us
        return self.costs.get(position, Cost(us, us, us, Source.MEASURED))

    def entry(self, position: int) -> int:
        """Return the task that waits for what a collective needs of its own rank: its arrival where it has one."""
        return self.arrivals.get(position, position)

    def places(self) -> list[dict[int, int]]:
        """Return, for every rank, the positions of its graph's tasks among ``tasks``."""
        places: list[dict[int, int]] = [{} for _ in self.ranks]
        for position, role in enumerate(self.roles):
            if role.task != ADDED:
                places[role.rank][role.task] = position
        return places

    def with_tasks(self, changed: Mapping[int, GraphTask], costs: Mapping[int, Cost] | None = None) -> TracedStep:
        """Return the step with some tasks replaced; a task without a cost of its own loses the one it had."""
        tasks = list(self.tasks)
        for position, task in changed.items():
            tasks[position] = task
        kept = {position: cost for position, cost in self.costs.items() if position not in changed}
        return replace(self, tasks=tasks, costs={**kept, **(costs or {})})

    def replay(self) -> GraphReplay:
        """Time every task of this step alone as early as what it waits for allows.

        Raises:
            GraphError: tasks wait for each other in a circle.
        """
        return replay_graph(self.tasks)

    def timed(self) -> SteadyReplay:
        """Replay the step; where a device lags behind its host, as one of many alike, with the backlog of such a run.

        Raises:
            GraphError: tasks wait for each other in a circle.
        """
        return steady_replay(self.tasks) if self.is_behind else SteadyReplay(self.replay(), 0.0)

    def alone_us(self) -> float:
        """Return the step of the profiler in a replay of this step alone, with the measured work of earlier ones.

        Raises:
            GraphError: tasks wait for each other in a circle.
        """
        replay = self.replay()
        if not self.is_behind:
            return replay.makespan_us
        ends = [0.0] * len(self.ranks)
        for role, span in zip(self.roles, replay.spans, strict=True):
            if role.task != ADDED and self.ranks[role.rank].tasks[role.task].row == MAIN_ROW:
                ends[role.rank] = max(ends[role.rank], span.end_us - self.starts_us[role.rank])
        return max(ends)

    def with_factor(self, positions: Collection[int], factor: float) -> float:
        """Return the step, in µs, if some tasks took another time."""
        tasks = list(self.tasks)
        for position in positions:
            tasks[position] = tasks[position]._replace(duration_us=tasks[position].duration_us * factor)
        return self._step_us(tasks)

    def _step_us(self, tasks: Sequence[GraphTask]) -> float:
        return steady_step_us(tasks) if self.is_behind else max(task_ends_us(tasks), default=0.0)

    def bounds_us(self) -> tuple[float, float] | None:
        """Return the step with every changed time at the lower and at the upper end of its interval; None without."""
        if not self.costs:
            return None
        ends = []
        for end in ("low_us", "high_us"):
            tasks = list(self.tasks)
            for position, cost in self.costs.items():
                tasks[position] = tasks[position]._replace(duration_us=getattr(cost, end))
            ends.append(self._step_us(tasks))
        return ends[0], ends[1]

    @property
    def source(self) -> Source:
        """Return the weakest source of any time."""
        return max((cost.source for cost in self.costs.values()), default=Source.MEASURED)


def product(factor: Cost, cost: Cost) -> Cost:
    """Return a cost times a factor that has an interval too; both ends multiply, the cautious choice."""
    source = max(factor.source, cost.source)
    return Cost(factor.us * cost.us, factor.low_us * cost.low_us, factor.high_us * cost.high_us, source)


def pass_of(local: LocalGraph, task: int) -> OperatorPass:
    """Return the pass of the operator that a task belongs to; other: of none."""
    operator = local.tasks[task].operator
    return "other" if operator == NO_OPERATOR else local.operators[operator].step_pass


def role_of(local: LocalGraph, rank: int, position: int) -> Role:
    """Return what a task of a rank's graph is."""
    task = local.tasks[position]
    operator = None if task.operator == NO_OPERATOR else local.operators[task.operator]
    return Role(
        rank,
        position,
        task.kind,
        "other" if operator is None else operator.step_pass,
        task.name if operator is None else operator.name,
        is_computing(local, task),
    )


def operators(step: TracedStep) -> Iterator[tuple[int, int, TracedOperator]]:
    """Yield every traced operator with its rank and its position in that rank's graph."""
    for rank, local in enumerate(step.ranks):
        for position, operator in enumerate(local.operators):
            yield rank, position, operator


def joined(graph: GlobalGraph) -> TracedStep:
    """Return the step of one rank or more, joined at their collectives."""
    number = {local.rank: at for at, local in enumerate(graph.ranks)}
    roles = []
    for task, (rank, owner) in zip(graph.tasks, graph.owners, strict=True):
        if owner is None:  # a late start, or a meeting
            roles.append(Role(number[rank], ADDED, TaskKind.WAIT, "other", task.name, computes=False))
        else:
            roles.append(role_of(graph.ranks[number[rank]], number[rank], owner))
    arrivals = {
        graph.position(member.rank, member.task): graph.arrival(member)
        for collective in graph.collectives
        for member in collective.members
    }
    starts = [graph.start(local.rank) for local in graph.ranks]
    if any(any(local.backlog_us) for local in graph.ranks):
        measured_us = max(local.profiled_us for local in graph.ranks)
    else:
        measured_us = max(start + local.step_us for start, local in zip(starts, graph.ranks, strict=True))
    meetings = [
        tuple(graph.position(member.rank, member.task) for member in collective.members)
        for collective in graph.collectives
    ]
    return TracedStep(graph.ranks, graph.tasks, roles, measured_us, arrivals, meetings, starts)


def waiting_also(task: GraphTask, others: Sequence[int]) -> GraphTask:
    """Return a task that also waits for others."""
    extra = [position for position in dict.fromkeys(others) if position not in task.after]
    if not extra:
        return task
    lags = (*(task.lags_us or (0.0,) * len(task.after)), *(0.0,) * len(extra))
    return task._replace(after=(*task.after, *extra), lags_us=lags)


def measured_spans(step: TracedStep) -> list[Span]:
    """Return the tasks of an unchanged step when they ran; a collective's transfer as what its rank did not wait."""
    arrivals = set(step.arrivals.values())
    spans = []
    for position, (graph_task, role) in enumerate(zip(step.tasks, step.roles, strict=True)):
        start = end = 0.0
        if role.task != ADDED:
            traced = step.ranks[role.rank].tasks[role.task]
            start = step.starts_us[role.rank] + traced.start_us
            end = start if position in arrivals else start + traced.duration_us
            if position in step.arrivals:
                start = max(start, end - graph_task.duration_us)
        name, rank, stream = graph_task.name, graph_task.rank, graph_task.stream
        spans.append(Span(name, rank, stream, start, end, graph_task.after, graph_task.category))
    return spans
