"""Steps of data-parallel jobs made up for tests: the truth of each rank, and the local graphs that a trace of it has.

The step is worked out layer by layer, without the timeline that is under test.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from predictor.replay.graph.local_graph import (
    NO_OPERATOR,
    Collective,
    Edge,
    EdgeKind,
    LocalGraph,
    OperatorPass,
    TaskKind,
    TracedOperator,
    TracedTask,
)

HOST, COMPUTE, COMMUNICATION = range(3)
ROWS = ("thread 1", "stream 7", "stream 20")


@dataclass(frozen=True, slots=True)
class MadeJob:
    """A step of all ranks.

    Attributes:
        locals: what their traces say.
        starts_us: of the ranks' steps on a true clock.
        steps_us: of the ranks, from their start.
        waits_us: at each collective, by rank, from its arrival to that of the last rank.
        offsets_us: what each clock lags behind rank 0's.
    """

    locals: list[LocalGraph]
    starts_us: list[float]
    steps_us: list[float]
    waits_us: list[list[float]]
    offsets_us: list[float]


class _Rank:
    """One rank's tasks while its step is worked out; times from the start of its step."""

    def __init__(self) -> None:
        self.tasks: list[TracedTask] = []
        self.operators: list[TracedOperator] = []
        self.ends = [0.0, 0.0, 0.0]
        self.last = [-1, -1, -1]

    def add(self, name: str, kind: TaskKind, row: int, duration: float, after: dict[int, EdgeKind]) -> int:
        edges = [Edge(task, 0.0, edge) for task, edge in after.items() if task >= 0]
        if self.last[row] >= 0:
            edges.append(Edge(self.last[row], 0.0, EdgeKind.ROW))
        start = max([self.ends[row], *(self.end(edge.task) for edge in edges)])
        self.tasks.append(TracedTask(name, kind, row, start, duration, tuple(edges), len(self.operators)))
        self.ends[row] = start + duration
        self.last[row] = len(self.tasks) - 1
        return self.last[row]

    def end(self, task: int) -> float:
        return self.tasks[task].start_us + self.tasks[task].duration_us

    def operator(self, name: str, step_pass: OperatorPass, us: float, tasks: tuple[int, ...]) -> None:
        operator = TracedOperator(name, step_pass, NO_OPERATOR, (), (), (), us, tasks, NO_OPERATOR, -1, -1)
        self.operators.append(operator)

    def compute(self, name: str, step_pass: OperatorPass, launch: float, us: float, is_gpu: bool) -> int:
        """Add an operator that a thread launches and a GPU runs, or that the thread itself runs."""
        if not is_gpu:
            task = self.add(name, TaskKind.HOST, HOST, us, {})
            self.operator(name, step_pass, us, (task,))
            return task
        host = self.add(name, TaskKind.HOST, HOST, launch, {})
        kernel = self.add(f"{name}_kernel", TaskKind.KERNEL, COMPUTE, us, {host: EdgeKind.LAUNCH})
        self.operator(name, step_pass, us, (host, kernel))
        return kernel

    def by_start(self) -> tuple[list[TracedTask], dict[int, int]]:
        order = sorted(range(len(self.tasks)), key=lambda at: self.tasks[at].start_us)
        place = {at: new for new, at in enumerate(order)}
        tasks = [self.tasks[at] for at in order]
        return [
            task._replace(after=tuple(edge._replace(task=place[edge.task]) for edge in task.after)) for task in tasks
        ], place


def make_job(
    computing_us: Sequence[Sequence[float]],
    transfers_us: Sequence[float],
    *,
    starts_us: Sequence[float] | None = None,
    offsets_us: Sequence[float] | None = None,
    jitter_us: Sequence[Sequence[float]] | None = None,
    launch_us: float = 3.0,
    optimizer_us: float = 20.0,
    backend: str = "cuda",
    names: Sequence[str] | None = None,
    sizes: Sequence[int] | None = None,
) -> MadeJob:
    """Make a step in which every layer's gradients are reduced beside the next layers' computing.

    Args:
        computing_us: by rank and layer.
        transfers_us: by layer, from the last arrival to the end.
        starts_us: by rank, of its step.
        offsets_us: by rank, what its clock lags behind the true one; the first is 0.
        jitter_us: by rank and layer, what it ends a collective later.
        names: of the layers' collectives.
        sizes: likewise, in bytes.
    """
    count, layers = len(computing_us), len(transfers_us)
    starts = list(starts_us or [0.0] * count)
    offsets = list(offsets_us or [0.0] * count)
    ranks = [_Rank() for _ in range(count)]
    calls: list[list[Collective]] = [[] for _ in ranks]
    waits: list[list[float]] = []
    is_gpu = backend != "cpu"
    for layer in range(layers):
        name = names[layer] if names else "all_reduce"
        size = sizes[layer] if sizes else 1000 * (layer + 1)
        reduced = []
        for rank, times in zip(ranks, computing_us, strict=True):
            done = rank.compute(f"layer{layer}", "backward", launch_us, times[layer], is_gpu)
            reduced.append(rank.add(name, TaskKind.COLLECTIVE, COMMUNICATION, 0.0, {done: EdgeKind.EVENT}))
        arrivals = [start + rank.tasks[at].start_us for start, rank, at in zip(starts, ranks, reduced, strict=True)]
        waits.append([max(arrivals) - arrival for arrival in arrivals])
        for number, (rank, at) in enumerate(zip(ranks, reduced, strict=True)):
            late = jitter_us[number][layer] if jitter_us else 0.0
            end = max(arrivals) + transfers_us[layer] + late - starts[number]
            rank.tasks[at] = rank.tasks[at]._replace(duration_us=end - rank.tasks[at].start_us, operator=NO_OPERATOR)
            rank.ends[COMMUNICATION] = end
            calls[number].append(Collective(at, name, "0", tuple(range(count)), size, layer))
    locals_ = []
    for number, rank in enumerate(ranks):
        rows = {rank.last[COMMUNICATION]: EdgeKind.SYNC, rank.last[COMPUTE]: EdgeKind.SYNC}
        rank.add("synchronize", TaskKind.WAIT, HOST, 0.0, rows)
        rank.compute("step", "optimizer", launch_us, optimizer_us, is_gpu)
        tasks, place = rank.by_start()
        locals_.append(
            LocalGraph(
                rank=number,
                world_size=count,
                label="ProfilerStep#1",
                step_us=max(rank.ends),
                begin_us=1.7e9 + starts[number] - offsets[number],
                backend=backend,
                device_name=f"device {number}",
                rows=ROWS,
                tasks=tasks,
                operators=[op._replace(tasks=tuple(place[at] for at in op.tasks)) for op in rank.operators],
                collectives=[call._replace(task=place[call.task]) for call in calls[number]],
                facts={},
            )
        )
    return MadeJob(locals_, starts, [max(rank.ends) for rank in ranks], waits, offsets)
