"""Traced steps by hand: one rank of data-parallel training on a GPU, small enough to reckon every time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from predictor.core.timeline.graph import GraphTask
from predictor.replay.graph.local_graph import (
    Collective,
    Edge,
    EdgeKind,
    LocalGraph,
    OperatorPass,
    TaskKind,
    TracedOperator,
    TracedTask,
)
from predictor.replay.whatif.traced_step import TracedStep, role_of

THREAD, STREAM, NCCL = 0, 1, 2
ROWS = ("thread 1", "stream 7", "stream 20")
LINEAR, ADDMM, GELU, LINEAR_BACKWARD, MM, REDUCE, ADAM = range(7)
LAUNCH_LINEAR, LAUNCH_GELU, LAUNCH_MM, LAUNCH_REDUCE = range(4)
K_LINEAR, K_GELU, K_MM, ALL_REDUCE, WAIT, LAUNCH_ADAM, K_ADAM = range(4, 11)
MIB = 2**20


def operator(
    name: str,
    step_pass: OperatorPass,
    tasks: tuple[int, ...],
    us: float,
    *,
    shapes: tuple[tuple[int, ...], ...] = (),
    forward: int = -1,
    parent: int = -1,
    scope: tuple[str, ...] = (),
) -> TracedOperator:
    """Return a call of an operator in half precision."""
    dtypes = ("c10::Half",) * len(shapes)
    return TracedOperator(name, step_pass, forward, scope, shapes, dtypes, us, tasks, parent, -1, -1)


def launched(by: int, *others: Edge) -> tuple[Edge, ...]:
    """Return the edges of a kernel that starts 2 µs after its launch at the earliest."""
    return (Edge(by, 2.0, EdgeKind.LAUNCH), *others)


def gpu_rank() -> LocalGraph:
    """Return a step of 253 µs: kernels of 50, 10 and 100 µs, an all-reduce of 50 µs behind them, Adam of 20 µs.

    The host launches all but Adam in 40 µs and waits for the all-reduce.
    """
    host, kernel = TaskKind.HOST, TaskKind.KERNEL
    tasks = (
        TracedTask("cudaLaunchKernel", host, THREAD, 0.0, 10.0, (), ADDMM, 1),
        TracedTask("cudaLaunchKernel", host, THREAD, 10.0, 10.0, (), GELU, 2),
        TracedTask("cudaLaunchKernel", host, THREAD, 20.0, 10.0, (), MM, 3),
        TracedTask("cudaLaunchKernelExC", host, THREAD, 30.0, 10.0, (), REDUCE, 4),
        TracedTask("gemm_forward", kernel, STREAM, 12.0, 50.0, launched(LAUNCH_LINEAR), ADDMM, call=1),
        TracedTask("gelu_kernel", kernel, STREAM, 62.0, 10.0, launched(LAUNCH_GELU), GELU, call=2),
        TracedTask("gemm_backward", kernel, STREAM, 72.0, 100.0, launched(LAUNCH_MM), MM, call=3),
        TracedTask(
            "ncclDevKernel_AllReduce",
            TaskKind.COLLECTIVE,
            NCCL,
            172.0,
            50.0,
            launched(LAUNCH_REDUCE, Edge(K_MM, 0.0, EdgeKind.GRADIENT)),
            REDUCE,
            call=4,
        ),
        TracedTask("cudaStreamSynchronize", TaskKind.WAIT, THREAD, 222.0, 1.0, (Edge(ALL_REDUCE, 0.0, EdgeKind.SYNC),)),
        TracedTask("cudaLaunchKernel", host, THREAD, 223.0, 8.0, (), ADAM, 5),
        TracedTask("adam_kernel", kernel, STREAM, 233.0, 20.0, launched(LAUNCH_ADAM), ADAM, call=5),
    )
    weight = (1024, 1024)
    operators = (
        operator("aten::linear", "forward", (0, 4), 50.0, shapes=((512, 1024), weight), scope=("Block_0",)),
        operator("aten::addmm", "forward", (0, 4), 50.0, shapes=((1024,), (512, 1024), weight), parent=LINEAR),
        operator("aten::gelu", "forward", (1, 5), 10.0, shapes=((512, 1024),)),
        operator("AddmmBackward0", "backward", (2, 6), 100.0, forward=LINEAR),
        operator("aten::mm", "backward", (2, 6), 100.0, shapes=((1024, 512), (512, 1024)), parent=LINEAR_BACKWARD),
        operator("c10d::allreduce_", "backward", (3, 7), 50.0),
        operator("Optimizer.step#Adam.step", "optimizer", (9, 10), 20.0),
    )
    collective = Collective(ALL_REDUCE, "all_reduce", "default", (0, 1), 2 * MIB, 0, (LINEAR_BACKWARD,))
    return LocalGraph(
        rank=0,
        world_size=2,
        label="ProfilerStep#3",
        step_us=253.0,
        begin_us=0.0,
        backend="cuda",
        device_name="NVIDIA A100-SXM4-80GB",
        rows=ROWS,
        tasks=tasks,
        operators=operators,
        collectives=(collective,),
        facts={},
    )


def cpu_rank() -> LocalGraph:
    """Return a step of 165 µs on a CPU: 100 µs in an operator, 5 µs of Python, 60 µs of another operator."""
    host = TaskKind.HOST
    tasks = (
        TracedTask("aten::mm", host, 0, 0.0, 100.0, (), 0),
        TracedTask("between operators", host, 0, 100.0, 5.0),
        TracedTask("aten::gelu", host, 0, 105.0, 60.0, (), 1),
    )
    operators = (operator("aten::mm", "forward", (0,), 100.0), operator("aten::gelu", "forward", (2,), 60.0))
    return LocalGraph(0, 1, "ProfilerStep#1", 165.0, 0.0, "cpu", "", ("thread 1",), tasks, operators, (), {})


def two_buckets() -> LocalGraph:
    """Return ``gpu_rank`` with a second bucket: the forward kernel stands for the backward of another layer."""
    local = gpu_rank()
    first = local.collectives[0]
    tasks = list(local.tasks)
    early = TracedTask(
        "ncclDevKernel_AllReduce",
        TaskKind.COLLECTIVE,
        NCCL,
        72.0,
        50.0,
        (Edge(K_GELU, 0.0, EdgeKind.GRADIENT),),
        REDUCE,
    )
    late = tasks[ALL_REDUCE]
    tasks[ALL_REDUCE] = early
    tasks.append(late)
    tasks[WAIT] = tasks[WAIT]._replace(after=tuple(Edge(at, 0.0, EdgeKind.SYNC) for at in (ALL_REDUCE, len(tasks) - 1)))
    collectives = (
        first._replace(size_bytes=2 * MIB, gradients=(GELU,)),
        first._replace(task=len(tasks) - 1, order=1),
    )
    return replace(local, tasks=tasks, collectives=collectives)


def graph_tasks(local: LocalGraph) -> list[GraphTask]:
    """Return a task of the replay for each task of a graph."""
    return [
        GraphTask(
            task.name,
            local.rank,
            local.rows[task.row],
            task.duration_us,
            tuple(edge.task for edge in task.after),
            tuple(edge.lag_us for edge in task.after),
        )
        for task in local.tasks
    ]


def single_rank(local: LocalGraph, tasks: Sequence[GraphTask]) -> TracedStep:
    """Return the step of one rank from its graph, and one task for each of the graph's, in the same order."""
    roles = [role_of(local, 0, position) for position in range(len(tasks))]
    return TracedStep((local,), tasks, roles, local.step_us)


def step_of(local: LocalGraph) -> TracedStep:
    """Return a rank's step, to be replayed and changed."""
    return single_rank(local, graph_tasks(local))
