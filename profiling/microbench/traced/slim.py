"""Slim a trace of PyTorch's profiler to its steps and the events that readers need."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from microbench.errors import MeasureError
from predictor.core.base.files import write_whole

STEP = re.compile(r"ProfilerStep#\d+")
# Facts about the trace; the others say what was selected while it was recorded.
KEPT_FACTS = (
    "schemaVersion", "deviceProperties", "distributedInfo", "record_shapes", "baseTimeNanoseconds", "displayTimeUnit",
    "cuda_runtime_version", "cuda_driver_version",
)  # fmt: skip
# Of an event: whether it is shown where, memory addresses and estimates of the profiler are left out.
DROPPED_ARGS = frozenset({"Ev Idx", "Record function id", "Input type names", "queued", "warps per SM"})
STRIDES = "Input Strides"
PYTHON = "python_function"
DIGITS = 3  # of microseconds: the profiler's clock counts nanoseconds


def _end(event: Mapping[str, Any]) -> float:
    return float(event["ts"]) + float(event.get("dur", 0.0))


def _slim_event(event: dict[str, Any]) -> dict[str, Any]:
    slim = dict(event)
    for key in ("ts", "dur"):
        if key in slim:
            slim[key] = round(float(slim[key]), DIGITS)
    if "args" in slim:
        dropped = DROPPED_ARGS | {STRIDES} if _all_contiguous(slim["args"]) else DROPPED_ARGS
        slim["args"] = {key: value for key, value in slim["args"].items() if key not in dropped}
    return slim


def _all_contiguous(args: Mapping[str, Any]) -> bool:
    """Return whether the strides of an operator's inputs say nothing beside their shapes."""
    shapes, strides = args.get("Input Dims", ()), args.get(STRIDES, ())
    return len(shapes) == len(strides) and all(map(_is_contiguous, shapes, strides))


def _is_contiguous(shape: Any, strides: Any) -> bool:
    if any(isinstance(size, list) for size in shape):
        return all(map(_is_contiguous, shape, strides)) and len(shape) == len(strides)
    step = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=False):
        if size != 1 and stride != step:
            return False
        step *= size
    return len(shape) == len(strides)


def step_marks(trace: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the host's marks of steps, in order."""
    marks = [
        event
        for event in trace["traceEvents"]
        if event.get("cat") == "user_annotation" and STEP.fullmatch(event.get("name", "")) and "dur" in event
    ]
    return sorted(marks, key=lambda event: float(event["ts"]))


def kept_steps(trace: Mapping[str, Any], steps: int, keep: str) -> range:
    """Return the positions of the steps to keep of the first ``steps``: all, or the median or fastest one."""
    times = step_us(trace)[:steps]
    if keep == "all" or not times:
        return range(steps)
    position = sorted(range(len(times)), key=times.__getitem__)[len(times) // 2 if keep == "median" else 0]
    return range(position, position + 1)


def slim_trace(trace: Mapping[str, Any], steps: range) -> dict[str, Any]:
    """Return a trace of some of its marked steps, by position; what began in them may end later.

    Raises:
        MeasureError: it has fewer marked steps than that.
    """
    marks = step_marks(trace)
    if len(marks) < steps.stop:
        raise MeasureError(f"the profiler recorded {len(marks)} whole steps; {steps.stop} were asked for")
    begin, end = float(marks[steps.start]["ts"]), _end(marks[steps.stop - 1])
    events = [
        _slim_event(event)
        for event in trace["traceEvents"]
        if event.get("ph") == "M"
        or (event.get("cat") != PYTHON and "ts" in event and begin <= float(event["ts"]) <= end)
    ]
    facts = {key: trace[key] for key in KEPT_FACTS if key in trace}
    return {**facts, "traceEvents": events}


def step_us(trace: Mapping[str, Any]) -> tuple[float, ...]:
    """Return the duration of every marked step."""
    return tuple(float(mark["dur"]) for mark in step_marks(trace))


def write_gz(path: Path, trace: Mapping[str, Any]) -> None:
    """Write a trace; the same trace gives the same bytes."""
    text = json.dumps(trace, separators=(",", ":"))
    write_whole(path, gzip.compress(text.encode(), mtime=0))
