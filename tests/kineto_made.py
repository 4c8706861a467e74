"""Traces of made-up jobs as the profiler writes them for GPUs: launches, kernels, collectives with what NCCL says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from predictor.replay.graph.local_graph import NO_PEER, LocalGraph, TaskKind, TracedTask
from tests.traces_made import COMMUNICATION, COMPUTE, MadeJob
from tests.unit.kineto_traces import NVIDIA, Event, event, write

FIRST_US = 100.0  # of the step, from the beginning of its trace
STREAMS = {COMPUTE: 7, COMMUNICATION: 20}


def write_job(folder: Path, made: MadeJob) -> list[Path]:
    """Write one trace a rank; every rank's times count from its own base."""
    return [write_rank(folder / f"rank-{local.rank}.json.gz", local) for local in made.locals]


def write_rank(path: Path, local: LocalGraph) -> Path:
    host_end = max(_end(task) for task in local.tasks if task.kind in (TaskKind.HOST, TaskKind.WAIT))
    events = [event("user_annotation", local.label, FIRST_US, host_end)]
    collectives = {call.task: call for call in local.collectives}
    for position, task in enumerate(local.tasks):
        if task.kind is TaskKind.HOST:
            events += _operator(local, position, task)
        elif task.kind is TaskKind.WAIT:
            before = max(_end(other) for other in local.tasks[:position] if other.kind is TaskKind.HOST)
            events.append(_call("cudaDeviceSynchronize", before, task.start_us - before, 100_000))
        else:
            said: dict[str, Any] = {}
            if position in collectives:
                call = collectives[position]
                said = {
                    "Collective name": call.name,
                    "In msg nelems": call.size_bytes // 4,
                    "Out msg nelems": call.size_bytes // 4,
                    "dtype": "Float",
                    "Process Group Name": call.group,
                    "Process Group Ranks": str(list(call.group_ranks)),
                    "Group size": len(call.group_ranks),
                }
                if call.peer != NO_PEER:
                    said["Dst Rank" if call.name == "send" else "Src Rank"] = call.peer
            events.append(_on_gpu(position, task, said))
    return write(
        path,
        events,
        baseTimeNanoseconds=round((local.begin_us - FIRST_US) * 1000),
        distributedInfo={"backend": "nccl", "rank": local.rank, "world_size": local.world_size},
        **NVIDIA,
    )


def _end(task: TracedTask) -> float:
    return task.start_us + task.duration_us


def _operator(local: LocalGraph, position: int, task: TracedTask) -> list[Event]:
    """Return an operator's call with the launches of what waits for it, one after the other."""
    kernels = [
        at for at, other in enumerate(local.tasks) if any(edge.task == position for edge in other.after) and other.row
    ]
    kernels += [
        at
        for at, other in enumerate(local.tasks)
        if other.kind is TaskKind.COLLECTIVE and any(edge.task in kernels for edge in other.after)
    ]
    part = task.duration_us / (2 * len(kernels) + 1)
    events = [event("cpu_op", f"aten::{task.name}", FIRST_US + task.start_us, task.duration_us)]
    for number, kernel in enumerate(kernels):
        at = task.start_us + (2 * number + 0.5) * part
        if local.tasks[kernel].kind is TaskKind.COLLECTIVE:
            events.append(_call("cudaStreamWaitEvent", at - 0.4 * part, 0.2 * part, 200_000 + kernel))
        events.append(_call("cudaLaunchKernel", at, part, kernel))
    return events


def _call(name: str, at: float, lasts: float, correlation: int) -> Event:
    return event("cuda_runtime", name, FIRST_US + at, lasts, correlation=correlation)


def _on_gpu(position: int, task: TracedTask, said: dict[str, Any]) -> Event:
    stream = STREAMS[task.row]
    name = f"ncclDevKernel_{task.name}" if said else task.name
    facts = {"device": 0, "stream": stream, "correlation": position, **said}
    return event("kernel", name, FIRST_US + task.start_us, task.duration_us, (0, stream), **facts)
