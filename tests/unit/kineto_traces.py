"""Small traces as the profiler's versions write them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

PUBLIC = Path(__file__).resolve().parents[3] / "shared" / "traces"
LARGE_BYTES = 1_000_000
PID, STREAM = 4711, 7
EVALUATE = "autograd::engine::evaluate_function: AddmmBackward0"
Event = dict[str, Any]


def public_trace(name: str) -> Path:
    """Return a public trace; its tests are skipped where it is absent."""
    path = PUBLIC / name
    if not path.is_file():
        pytest.skip(f"no {name} in {PUBLIC}")
    return path


def recorded_traces() -> list[Any]:
    """Return a parameter for each public trace, large ones thorough; none where they are absent, which skips a test."""
    paths = sorted(path for path in PUBLIC.glob("*.json.gz") if "chakra" not in path.name)
    large = {path: pytest.mark.thorough for path in paths if path.stat().st_size > LARGE_BYTES}
    return [pytest.param(path, id=path.name, marks=large.get(path, ())) for path in paths]


def event(
    category: str, name: str, start: float, lasts: float, row: tuple[Any, Any] = (PID, PID), **args: Any
) -> Event:
    """Return a complete event."""
    place = {"pid": row[0], "tid": row[1], "ts": start, "dur": lasts}
    return {"ph": "X", "cat": category, "name": name, **place, **({"args": args} if args else {})}


def flow(phase: str, number: int, kind: str, at: float, row: tuple[Any, Any] = (PID, PID)) -> Event:
    """Return an end of an arrow."""
    return {"ph": phase, "id": number, "pid": row[0], "tid": row[1], "ts": at, "cat": kind, "name": kind, "bp": "e"}


def write(path: Path, events: Sequence[Event], **facts: Any) -> Path:
    """Write a trace, compressed if its name says so."""
    content = json.dumps({"schemaVersion": 1, **facts, "traceEvents": list(events), "traceName": path.name}, indent=1)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content.encode()) if path.suffix == ".gz" else content.encode())
    return path


def training_steps(steps: int = 3, base: float = 1000.0, step_us: float = 100.0) -> list[Event]:
    """Return whole steps on one GPU: forward, backward on a second thread, optimizer; kernels on one stream."""
    events: list[Event] = []
    backward = (PID, PID + 1)
    for step in range(steps):
        at, number = base + step_us * step, 10 * step
        events.append(event("user_annotation", f"ProfilerStep#{step + 5}", at, step_us - 2.0))
        forward_args: dict[str, Any] = {"External id": number + 1, "Sequence number": step, "Fwd thread id": 0}
        events.append(event("cpu_op", "aten::linear", at + 5, 20.0, **forward_args))
        events += launched(at + 10, "gemm", number + 1)
        backward_args: dict[str, Any] = {"External id": number + 2, "Sequence number": step, "Fwd thread id": 1}
        events.append(event("cpu_op", EVALUATE, at + 40, 25.0, backward, **backward_args))
        events += launched(at + 45, "gemm_backward", number + 2, backward)
        events.append(event("user_annotation", "Optimizer.step#SGD.step", at + 70, 20.0))
    return events


def launched(at: float, name: str, number: int, row: tuple[Any, Any] = (PID, PID)) -> list[Event]:
    """Return a launch and its kernel."""
    call: dict[str, Any] = {"External id": number, "correlation": number}
    return [
        event("cuda_runtime", "cudaLaunchKernel", at, 4.0, row, **call),
        event("kernel", name, at + 6, 30.0, (0, STREAM), device=0, stream=STREAM, correlation=number),
    ]


def written(tmp_path: Path, events: Sequence[Event], **facts: Any) -> Path:
    """Write a trace into a test's folder."""
    return write(tmp_path / "trace.json", events, **facts)


NVIDIA: Mapping[str, Any] = {"deviceProperties": [{"id": 0, "name": "NVIDIA A100-SXM4-80GB"}]}
