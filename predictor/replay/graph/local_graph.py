"""Local dataflow graph of one traced step: tasks of a rank's threads and streams, and their dependencies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, NamedTuple

NO_OPERATOR = -1
NO_PEER = -1
CARRIED = "earlier steps"  # name of tasks that those had launched and that ran when this step began
OperatorPass = Literal["forward", "backward", "optimizer", "other"]


class TaskKind(StrEnum):
    """What a task occupies."""

    HOST = "host"  # part of a thread's time, in an operator, a runtime call or Python between them
    WAIT = "wait"  # a thread blocks: its duration is what is left after what it waits for has ended
    KERNEL = "kernel"
    COPY = "copy"
    COLLECTIVE = "collective"  # a kernel that communicates (collective_names.py), or a call that gloo's threads run


class EdgeKind(StrEnum):
    """Why a task waits for another one beside its own row."""

    ROW = "row"  # the task before it on its thread or stream
    LAUNCH = "launch"  # a runtime call started it
    EVENT = "event"  # its stream waits for an event of another stream
    SYNC = "sync"  # a thread waits for a stream, an event, the device or a collective
    WAKE = "wake"  # a thread was idle until another thread gave it work, or finished
    GRADIENT = "gradient"  # a bucket's collective waits for the gradients in it


class Edge(NamedTuple):
    """A task that must have ended, and how long after its end the other one starts at the earliest.

    Attributes:
        call: of SYNC, position in the trace's events of the call that waits; UNKNOWN: none. It is another one than that
            of the task that has the edge where waiting filled the call, as the next task of the thread waits for it.
        operator: of SYNC, position in ``LocalGraph.operators`` of the innermost one around it; NO_OPERATOR: none.
    """

    task: int
    lag_us: float
    kind: EdgeKind
    call: int = -1
    operator: int = NO_OPERATOR


class TracedTask(NamedTuple):
    """One task; times in microseconds from the start of the step.

    Attributes:
        row: position in ``LocalGraph.rows``.
        operator: position in ``LocalGraph.operators`` of the innermost traced operator; NO_OPERATOR: none.
        event: position in the trace's events; UNKNOWN: time between events.
        after: what it waits for. As measured, at least one edge is tight: its end plus its lag is the task's start.
        call: position in the trace's events of the runtime call that launched it; UNKNOWN: none. The call's own tasks
            are those of this event; a LAUNCH edge may be to what ended when the call began.
    """

    name: str
    kind: TaskKind
    row: int
    start_us: float
    duration_us: float
    after: tuple[Edge, ...] = ()
    operator: int = NO_OPERATOR
    event: int = -1
    call: int = -1


class TracedOperator(NamedTuple):
    """One call of an operator, with everything that it started.

    Attributes:
        name: as PyTorch's dispatcher or autograd names it: ``aten::linear``, ``AddmmBackward0``. Of a launch in no
            operator, which stands for one, that of the innermost annotation or module around it.
        step_pass: where in the step.
        forward: of a backward operator, the position of the forward one; NO_OPERATOR: none or unknown.
        scope: annotations and modules around it, outermost first.
        shapes: dimensions of its inputs where the trace has them; () of what is no tensor.
        dtypes: likewise, as PyTorch names them: ``float``, ``c10::BFloat16``.
        us: its time where it computes: of its kernels on a GPU, of the thread on a CPU, inner operators included.
        tasks: its own and those of operators inside it.
        parent: the operator around it; NO_OPERATOR: none.
        external: ties it to the node of an execution trace.
        event: position in the trace's events.
    """

    name: str
    step_pass: OperatorPass
    forward: int
    scope: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    us: float
    tasks: tuple[int, ...]
    parent: int
    external: int
    event: int


class Collective(NamedTuple):
    """One collective that this rank took part in.

    Attributes:
        task: position in ``LocalGraph.tasks``.
        name: ``all_reduce``, ``all_gather``, ``reduce_scatter``, ``broadcast``, ``all_to_all``, ``send``, ``recv``,
            or as the trace names it.
        group: name of its process group; empty where the trace does not say.
        group_ranks: ranks of that group where the trace says so.
        size_bytes: message, of the operation's larger side; 0 where unknown.
        order: how many collectives of the same group this rank ran before it.
        gradients: positions of the backward operators whose gradients are in it, where it is a bucket.
        peer: of a send or receive, the rank at its other end, counted in the job; NO_PEER where the trace does not say.
        library: that runs it beside the process groups, so that its ranks are not known; empty: a process group does.
    """

    task: int
    name: str
    group: str
    group_ranks: tuple[int, ...]
    size_bytes: int
    order: int
    gradients: tuple[int, ...] = ()
    peer: int = NO_PEER
    library: str = ""


@dataclass(frozen=True, slots=True)
class LocalGraph:
    """One rank's step.

    Attributes:
        rank: of the process; 0 where the trace does not say.
        world_size: ranks of the job; 1 where the trace does not say.
        label: of the step: ``ProfilerStep#551``, or what the trace was cut by.
        step_us: from its start to the end of its last task, as measured.
        begin_us: its start on the clock of the trace, to compare ranks.
        backend: cuda, rocm or cpu.
        device_name: of the GPU; empty where unknown.
        rows: labels of the threads and streams.
        tasks: by start.
        operators: by start, every traced one; inner ones after those around them.
        collectives: by start.
        facts: what else is known of it: notes, sizes.
        host_us: from the host's begin of the step to its end; None: what it started ended by then too.
    """

    rank: int
    world_size: int
    label: str
    step_us: float
    begin_us: float
    backend: str
    device_name: str
    rows: Sequence[str]
    tasks: Sequence[TracedTask]
    operators: Sequence[TracedOperator]
    collectives: Sequence[Collective]
    facts: Mapping[str, object]
    host_us: float | None = None

    @property
    def profiled_us(self) -> float:
        """Return the step as the profiler has it: from the host's begin of it to the host's end."""
        return self.step_us if self.host_us is None else self.host_us

    @property
    def backlog_us(self) -> tuple[float, float]:
        """Return how long the device still ran earlier steps after the begin, and this step after the host's end."""
        carried = (task.start_us + task.duration_us for task in self.tasks if task.name == CARRIED)
        return max(carried, default=0.0), max(0.0, self.step_us - self.profiled_us)
