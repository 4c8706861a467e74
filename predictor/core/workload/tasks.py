"""Tasks and passes: a task is a repeated call of an operator or a collective, a pass is tasks and hidden traffic."""

from __future__ import annotations

from enum import StrEnum
from math import ceil, inf
from typing import NamedTuple

from predictor.core.costs import scalar_kernels
from predictor.core.costs.catalogue import catalogue
from predictor.core.costs.collectives import COLLECTIVES, Topology, collective_shape
from predictor.core.costs.layer_call import LayerCall
from predictor.core.costs.operator import Direction, Operator, Shape

FORWARD, BACKWARD = Direction.FORWARD, Direction.BACKWARD
# Rows of a residual addition that is long enough to run at full rate, and inside what systems measure.
STREAM_ROWS = 16384
ADD_PASSES = 3  # two reads and one write


class Part(StrEnum):
    """Where a task's time is shown."""

    OPERATORS = "operators"
    SIDE_KERNELS = "side_kernels"
    TENSOR_PARALLEL = "tensor_parallel"
    CONTEXT_PARALLEL = "context_parallel"
    EXPERT_PARALLEL = "expert_parallel"
    PIPELINE_PARALLEL = "pipeline_parallel"
    DATA_PARALLEL = "data_parallel"
    EMBEDDING_EXCHANGE = "embedding_exchange"
    INPUT = "input"
    HOST_LINK = "host_link"
    EMBEDDING_LOOKUP = "embedding_lookup"
    EMBEDDING_UPDATE = "embedding_update"
    OPTIMIZER = "optimizer"


TRAFFIC = frozenset(
    {
        Part.TENSOR_PARALLEL,
        Part.CONTEXT_PARALLEL,
        Part.EXPERT_PARALLEL,
        Part.PIPELINE_PARALLEL,
        Part.DATA_PARALLEL,
        Part.EMBEDDING_EXCHANGE,
        Part.INPUT,
        Part.HOST_LINK,
    }
)


class Task(NamedTuple):
    """Run ``operator`` on ``shape`` ``times`` times.

    Attributes:
        name: its purpose; differs from the operator's name where a kernel is timed by its bytes.
        times: need not be whole, where a kernel is timed as a multiple of another's bytes.
        launches: kernels that the host launches for all of them.
    """

    name: str
    operator: Operator
    direction: Direction
    shape: Shape
    times: float
    part: Part
    launches: float


class Overlap(NamedTuple):
    """Traffic that runs beside some of a pass's tasks; what exceeds their time is exposed.

    Time behind which an overlap hides is no longer there for later overlaps of the same pass.

    Attributes:
        slows: the tasks take longer beside it (``core/costs/interference.py``).
        buckets: equal parts of the traffic, each ready with its part of the tasks; infinitely many: all starts at once.
        own_link: it uses no link of other overlaps, which hide behind the same time.
    """

    traffic: list[Task]
    behind: list[Task]
    slows: bool = False
    buckets: float = inf
    own_link: bool = False


class PassTasks(NamedTuple):
    """One pass of one micro-batch through one model chunk: tasks in turn, and traffic beside them."""

    tasks: list[Task]
    overlaps: list[Overlap]

    def __add__(self, other: object) -> PassTasks:
        """Run one pass after the other."""
        assert isinstance(other, PassTasks)
        return PassTasks(self.tasks + other.tasks, self.overlaps + other.overlaps)

    def calls(self) -> list[Task]:
        """Return everything that runs, hidden traffic included."""
        return self.tasks + [task for overlap in self.overlaps for task in overlap.traffic]

    def repeated(self, times: float) -> PassTasks:
        """Return so many passes one after the other."""
        overlaps = [
            each._replace(traffic=scaled(each.traffic, times), behind=scaled(each.behind, times))
            for each in self.overlaps
        ]
        return PassTasks(scaled(self.tasks, times), overlaps)

    @property
    def flops(self) -> float:
        """Return the FLOPs of what runs in turn."""
        return sum(task.operator.work(task.shape, task.direction, 1).flops * task.times for task in self.tasks)


NO_TASKS = PassTasks([], [])


class Passes(NamedTuple):
    """One micro-batch's passes through a block."""

    forward: PassTasks
    recompute: PassTasks
    backward: PassTasks


def share_of(tasks: list[Task], share: float) -> list[Task]:
    """Return a share of each task's time."""
    return [task._replace(times=task.times * share) for task in tasks]


def scaled(tasks: list[Task], share: float) -> list[Task]:
    """Return a share of each task, of its time and of its launches."""
    if share == 1.0:
        return tasks
    return [task._replace(times=task.times * share, launches=task.launches * share) for task in tasks]


def operator_task(name: str, call: LayerCall, direction: Direction, times: float = 1.0) -> Task:
    """Return the task of a catalogue operator on one layer call."""
    operator = catalogue()[name]
    launches = times * operator.launches[direction is BACKWARD]
    return Task(name, operator, direction, operator.shape_in(call), times, Part.OPERATORS, launches)


def shaped_task(name: str, shape: Shape, direction: Direction, times: float = 1.0) -> Task:
    """Return the task of a catalogue operator on a shape of its own."""
    operator = catalogue()[name]
    launches = times * operator.launches[direction is BACKWARD]
    return Task(name, operator, direction, shape, times, Part.OPERATORS, launches)


def collective_task(name: str, size_bytes: float, group: Topology, part: Part, times: float = 1.0) -> list[Task]:
    """Return the task of a collective, or none where the group is a single rank or there is nothing to send."""
    if group.ranks < 2 or size_bytes <= 0:
        return []
    shape = collective_shape(name, size_bytes, group)
    collective = COLLECTIVES[name]
    return [Task(name, collective, FORWARD, shape, times, part, times * collective.launches[0])]


def stream_task(name: str, size_bytes: float, call: LayerCall, launches: float = 1) -> Task:
    """Return the task of an element-wise kernel without measurements, from the bytes that it reads and writes.

    It runs at the rate of the residual addition over activations of the same width: both only stream memory. One that
    streams more than an activation is timed by an addition of its own size, up to STREAM_ROWS, where rates have
    levelled off; in parts of a small activation's size it would pay for a launch each.
    """
    return _streamed(name, size_bytes, call, call.tokens, launches, Part.SIDE_KERNELS)


def scalar_task(name: str, elements: float, size_bytes: float, kernels: int, launches: float) -> Task:
    """Return PyTorch's element-wise kernels that load one number at a time.

    Args:
        name: of the task.
        elements: that each kernel computes.
        size_bytes: that all of them read and write.
        kernels: that run.
        launches: of the host.
    """
    shape = (ceil(elements), ceil(size_bytes / kernels))
    return Task(name, scalar_kernels.OPERATOR, FORWARD, shape, float(kernels), Part.SIDE_KERNELS, launches)


def parameter_stream_task(name: str, size_bytes: float, call: LayerCall, part: Part) -> Task:
    """Return the task of a kernel over parameters, timed as ``stream_task``, whatever the size of an activation."""
    return _streamed(name, size_bytes, call, 1, 1, part)


def streamed(size_bytes: float, call: LayerCall, rows: int) -> tuple[Shape, float]:
    """Return the shape of the residual addition that times a stream, ``rows`` or more of it, and how many times."""
    row_bytes = ADD_PASSES * call.element_bytes * call.hidden_size
    longest = int(min(size_bytes / row_bytes, STREAM_ROWS)) // rows
    if longest > 1:  # powers of two keep the sizes few, so that most streams of a run share a remembered answer
        rows <<= longest.bit_length() - 1
    return (rows, call.hidden_size), size_bytes / (row_bytes * rows)


def _streamed(name: str, size_bytes: float, call: LayerCall, rows: int, launches: float, part: Part) -> Task:
    shape, times = streamed(size_bytes, call, rows)
    return Task(name, catalogue()["residual_add"], FORWARD, shape, times, part, launches)
