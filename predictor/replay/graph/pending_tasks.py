"""Tasks of a local graph while it is built: in the order in which they are found, not yet by start."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from dataclasses import dataclass, field

from predictor.replay.files.events import UNKNOWN
from predictor.replay.graph.local_graph import NO_OPERATOR, Edge, EdgeKind, TaskKind, TracedTask

ROOT = 0  # the task of no duration at the start of the step; what nothing else explains waits for it


@dataclass(slots=True)
class PendingTask:
    """A task whose edges are positions in ``PendingTasks.tasks``."""

    name: str
    kind: TaskKind
    row: int
    start_us: float
    end_us: float
    operator: int = NO_OPERATOR
    event: int = UNKNOWN
    after: list[Edge] = field(default_factory=list)
    call: int = UNKNOWN


class PendingTasks:
    """The tasks of a step so far. Those of one row are added in their order."""

    def __init__(self, row: int, label: str) -> None:
        """Begin with the task that stands for the start of the step, on a row, named as the step."""
        self.tasks: list[PendingTask] = []
        self.rows: defaultdict[int, list[int]] = defaultdict(list)
        self._ends: defaultdict[int, list[float]] = defaultdict(list)
        self._before: list[int] = []
        self.add(PendingTask(label, TaskKind.HOST, row, 0.0, 0.0))

    def add(self, task: PendingTask) -> int:
        """Add the next task of its row and return its position."""
        position = len(self.tasks)
        self.tasks.append(task)
        self._before.append(self.rows[task.row][-1] if self.rows[task.row] else ROOT)
        self.rows[task.row].append(position)
        self._ends[task.row].append(task.end_us)
        return position

    def before(self, task: int) -> int:
        """Return the task before another one on its row, or ROOT."""
        return self._before[task]

    def end_before(self, row: int, end_us: float) -> None:
        """Let the last task of a row end earlier."""
        self.tasks[self.rows[row][-1]].end_us = end_us
        self._ends[row][-1] = end_us

    def last_by(self, row: int, time_us: float) -> int:
        """Return the last task of a row that has ended by a time, or ROOT."""
        place = bisect_right(self._ends[row], time_us) if row in self._ends else 0
        return self.rows[row][place - 1] if place else ROOT

    def first_from(self, row: int, time_us: float) -> int:
        """Return the first task of a row that starts at a time or later, or ROOT."""
        rows = self.rows.get(row, [])
        place = bisect_left(rows, time_us, key=lambda task: self.tasks[task].start_us)
        return rows[place] if place < len(rows) else ROOT

    def runs(self, row: int, time_us: float) -> bool:
        """Return whether a task of a row runs before and after a time."""
        rows = self.rows.get(row, [])
        place = bisect_left(rows, time_us, key=lambda task: self.tasks[task].start_us) - 1
        return place >= 0 and self.tasks[rows[place]].end_us > time_us

    def wait(
        self,
        task: int,
        before: int,
        kind: EdgeKind,
        at_most_us: float | None = None,
        call: int = UNKNOWN,
        operator: int = NO_OPERATOR,
    ) -> bool:
        """Let a task wait for another one; return whether it started as soon as the edge allows.

        Args:
            task: that waits.
            before: that it waits for.
            kind: why.
            at_most_us: what the edge typically takes; None: all the time that passed between them.
            call: that waits, as ``Edge.call``.
            operator: around it, as ``Edge.operator``.
        """
        waited = self.tasks[task].start_us - self.tasks[before].end_us
        if waited < 0.0 or task == before:
            return False
        lag = waited if at_most_us is None else min(waited, at_most_us)
        self.tasks[task].after.append(Edge(before, lag, kind, call, operator))
        return lag == waited

    def in_order(self) -> list[TracedTask]:
        """Return the tasks by start, with every row in its order."""
        tasks = self.tasks
        order = sorted(range(len(tasks)), key=lambda at: (tasks[at].start_us, tasks[at].end_us, at))
        place = {at: number for number, at in enumerate(order)}
        traced = []
        for at in order:
            task = tasks[at]
            after: dict[int, Edge] = {}
            for edge in task.after:
                known = after.get(edge.task)
                if known is None or edge.lag_us > known.lag_us:
                    after[edge.task] = edge._replace(task=place[edge.task])
                elif known.call != edge.call:  # two calls wait for it, so that no one of them can be taken away
                    after[edge.task] = known._replace(call=UNKNOWN, operator=NO_OPERATOR)
            duration = task.end_us - task.start_us
            edges, times = tuple(after.values()), (task.start_us, duration)
            traced.append(
                TracedTask(task.name, task.kind, task.row, *times, edges, task.operator, task.event, task.call)
            )
        return traced
