"""A predicted step as Chakra traces, for simulators of the network.

Every pipeline stage and data-parallel replica is a rank: stage × replicas + replica. Its tensor-parallel ranks do the
same at the same time, so that one stands for them, and their traffic stays in the durations of slots, as do the
collectives of ZeRO-2 and 3 within passes. Messages between stages and the reduction and gathering of parameters at the
step's end are communication, which the simulator times. Their nodes carry the predicted durations nevertheless, for
simulators that only replay.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from predictor.core.base.collector import paused_collector
from predictor.core.costs.collectives import COLLECTIVES
from predictor.core.costs.operator import Direction
from predictor.core.step.prediction import Prediction
from predictor.core.step.spans import step_graph
from predictor.core.timeline.graph import GraphTask
from predictor.core.timeline.pipeline import PASS_NAMES, Stream
from predictor.core.timeline.schedules import BACKWARD, FORWARD, SCHEDULES, WEIGHT
from predictor.core.workload.step_tasks import EndTasks, StageTasks
from predictor.core.workload.tasks import TRAFFIC, Task
from predictor.replay.files.chakra_file import ChakraFile
from predictor.replay.files.chakra_step import Communication, Computation, TaskWork, chakra_files, write_chakra

POINT_TO_POINT, REDUCE_SCATTER = "point_to_point", "reduce_scatter"
TIED, GATHER = "tied-embedding reduction", "parameter gather"  # names of tasks at a step's end
MEASURED_BYTES = 1_000_000  # any size, to compare groups by what they send


class ChakraReplica(NamedTuple):
    """The tasks of the ranks of one replica, and their work by position, as ``chakra_files`` takes them."""

    tasks: list[GraphTask]
    work: dict[int, TaskWork]


@dataclass(frozen=True, slots=True)
class ChakraStep:
    """A predicted step on all ranks.

    Attributes:
        graph: the tasks of one replica's stages, in which ranks are stages.
        work: by their position, peers and groups left open.
        stages, replicas: how many.
        groups: ranks by the name of their group.
    """

    graph: list[GraphTask]
    work: dict[int, TaskWork]
    stages: int
    replicas: int
    groups: dict[str, tuple[int, ...]]

    def replica(self, number: int) -> ChakraReplica:
        """Return one replica's share; replicas wait for each other in collectives only."""
        work = {
            position: _on_rank(does, self.graph[position], number, self.stages, self.replicas)
            if isinstance(does, Communication)
            else does
            for position, does in self.work.items()
        }
        return ChakraReplica([task._replace(rank=task.rank * self.replicas + number) for task in self.graph], work)

    def files(self) -> Iterator[dict[int, ChakraFile]]:
        """Yield the files of every replica by rank; together those of a thousand ranks take gigabytes."""
        for number in range(self.replicas):
            yield chakra_files(*self.replica(number), self.groups)


class _Traffic(NamedTuple):
    """A collective, and what one rank puts into it in a step."""

    kind: str
    size_bytes: float


@paused_collector()
def write_chakra_step(prediction: Prediction, folder: Path) -> list[Path]:
    """Write a predicted step as ``step.0.et`` … and ``step.groups.json``, and return the files of the ranks.

    Raises:
        OSError: a file cannot be written.
    """
    step = chakra_step(prediction)
    return write_chakra(folder, step.files(), step.groups)


def chakra_step(prediction: Prediction) -> ChakraStep:
    """Return a predicted step on the ranks of all stages and replicas."""
    replicas = prediction.run.layout.gradient_ranks
    stages = len(prediction.stages)
    graph = _without_hidden(step_graph(prediction))
    sharing = [stage for stage, tasks in enumerate(prediction.tasks.stages) if tasks.end.tied]
    return ChakraStep(graph, _works(prediction, graph), stages, replicas, _groups(stages, replicas, sharing))


def _without_hidden(graph: Sequence[GraphTask]) -> list[GraphTask]:
    """Return a graph without the traffic that slots hide, for which nothing waits."""
    kept = [position for position, task in enumerate(graph) if task.stream != Stream.COMMUNICATION]
    place = {position: number for number, position in enumerate(kept)}
    return [
        graph[position]._replace(after=tuple(place[before] for before in graph[position].after)) for position in kept
    ]


def _groups(stages: int, replicas: int, sharing: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """Return the ranks of a stage, by its number from 1, and behind them those that share an embedding."""
    groups: dict[str, tuple[int, ...]] = {}
    if replicas > 1:
        groups = {str(1 + stage): tuple(range(stage * replicas, (stage + 1) * replicas)) for stage in range(stages)}
    if sharing:
        for replica in range(replicas):
            groups[str(1 + stages + replica)] = tuple(stage * replicas + replica for stage in sharing)
    return groups


def _on_rank(does: Communication, task: GraphTask, replica: int, stages: int, replicas: int) -> Communication:
    """Return a stage's communication as that of one of its replicas."""
    if does.kind in ("send", "receive"):
        return does._replace(peer=does.peer * replicas + replica)
    return does._replace(group=str(1 + stages + replica if task.name == TIED else 1 + task.rank))


def _works(prediction: Prediction, graph: Sequence[GraphTask]) -> dict[int, TaskWork]:
    """Return what the tasks of the graph compute, send or reduce."""
    layout, step = prediction.run.layout, prediction.tasks
    message = _traffic(step.message, layout.switched_as, 2).size_bytes
    slots = _slot_work(prediction)
    tags: dict[tuple[object, ...], int] = {}
    collectives_us: defaultdict[tuple[int, str], float] = defaultdict(float)
    for task in graph:
        if task.stream == Stream.REDUCTION:
            collectives_us[task.rank, _purpose(task.name)] += task.duration_us
    work: dict[int, TaskWork] = {}
    for position, task in enumerate(graph):
        end = step.stages[task.rank].end
        if task.stream == Stream.COMPUTE:
            work[position] = slots[task.rank, task.details["pass"], task.details["chunk"]]
        elif task.stream in (Stream.SEND, Stream.RECEIVE):
            source, target = int(str(task.details["from_stage"])), int(str(task.details["to_stage"]))
            tag = tags.setdefault((task.name, source, target), len(tags))
            kind, peer = ("send", target) if task.stream == Stream.SEND else ("receive", source)
            work[position] = Communication(kind, round(message), peer=peer, tag=tag)
        elif task.stream == Stream.REDUCTION:
            traffic = _of_end(end, task.name, layout.switched_as, layout.gradient_ranks)
            share = task.duration_us / collectives_us[task.rank, _purpose(task.name)]
            work[position] = Communication(traffic.kind, round(traffic.size_bytes * share))
    return work


def _purpose(name: str) -> str:
    """Return which of a stage's collectives a task is a part of."""
    return name.partition(",")[0]


def _of_end(end: EndTasks, name: str, switched_as: int | None, replicas: int) -> _Traffic:
    """Return the collective at a stage's end that a task is of."""
    if name == TIED:
        return _traffic(end.tied, switched_as, 2)
    return _traffic(end.gather if name.startswith(GATHER) else end.reduction, switched_as, replicas)


def _traffic(tasks: Sequence[Task], switched_as: int | None, ranks: int) -> _Traffic:
    """Return tasks' collectives as one, of the kind that moves most.

    Their shapes are those under which they are timed: ``collective_shape`` is undone.
    """
    sizes: dict[str, float] = {}
    for task in tasks:
        name = task.operator.name
        if name not in COLLECTIVES:
            continue
        size_bytes, nodes, gpus = task.shape
        size = float(size_bytes)
        if switched_as is not None and nodes == 1 and name == POINT_TO_POINT:
            size *= switched_as - 1
        elif switched_as is not None and nodes == 1 and gpus != ranks:
            sent = [
                COLLECTIVES[name].work((MEASURED_BYTES, 1, group), Direction.FORWARD, 1).size_bytes
                for group in (gpus, ranks)
            ]
            size *= sent[0] / sent[1]
        if name == REDUCE_SCATTER:  # timed by a rank's shard
            size *= ranks if switched_as is not None and nodes == 1 else nodes * gpus
        sizes[name] = sizes.get(name, 0.0) + size * task.times
    kind = max(sizes, key=lambda name: sizes[name], default=POINT_TO_POINT)
    return _Traffic(kind, sum(sizes.values()))


def _slot_work(prediction: Prediction) -> Mapping[tuple[int, object, object], Computation]:
    """Return the work of every kind of slot: stage, pass and chunk."""
    splits = WEIGHT in SCHEDULES[prediction.tasks.schedule].passes
    work: dict[tuple[int, object, object], Computation] = {}
    remembered: dict[int, dict[tuple[str, int], Computation]] = {}
    for number, stage in enumerate(prediction.tasks.stages):
        if id(stage) not in remembered:  # equal stages are one object
            remembered[id(stage)] = _stage_work(stage, prediction.run.precision, splits)
        work |= {(number, *slot): computation for slot, computation in remembered[id(stage)].items()}
    return work


def _stage_work(stage: StageTasks, precision: str, splits: bool) -> dict[tuple[str, int], Computation]:
    work: dict[tuple[str, int], Computation] = {}
    for number, chunk in enumerate(stage.chunks):
        totals: dict[str, tuple[float, float]] = {}
        for block, times in chunk.blocks:
            weight = list(block.weight) if splits else []
            passes: dict[str, list[tuple[Task, float]]] = {
                PASS_NAMES[FORWARD]: [(task, times) for task in block.forward.tasks],
                PASS_NAMES[BACKWARD]: [
                    *((task, times) for task in chain(block.recompute.tasks, block.backward.tasks)),
                    *((task, -times) for task in weight),
                ],
                PASS_NAMES[WEIGHT]: [(task, times) for task in weight],
            }
            for name, tasks in passes.items():
                flops, size = _sum_of(tasks, precision)
                before = totals.get(name, (0.0, 0.0))
                totals[name] = before[0] + flops, before[1] + size
        work |= {(name, number): Computation(round(flops), round(size)) for name, (flops, size) in totals.items()}
    return work


def _sum_of(tasks: Sequence[tuple[Task, float]], precision: str) -> tuple[float, float]:
    """Return the FLOPs and bytes of tasks that compute, each so many times."""
    flops = size = 0.0
    for task, times in tasks:
        if task.part not in TRAFFIC:
            work = task.operator.work(task.shape, task.direction, 1)
            flops += times * task.times * work.flops
            size += times * task.times * work.size_bytes * task.operator.byte_scale(precision)
    return flops, size
