"""Compare local graphs with HolisticTraceAnalysis (HTA) 0.5.0 on the same traces: critical path and idle time.

HTA is no requirement of the project. In an environment of its own (pandas 3 is too new for this version of HTA)::

    python -m venv /tmp/hta
    /tmp/hta/bin/pip install --no-deps HolisticTraceAnalysis==0.5.0
    /tmp/hta/bin/pip install "pandas<3" networkx plotly psutil pydantic pyyaml
    PYTHONPATH=. /tmp/hta/bin/python tests/reference_hta.py ../shared/traces/hta_trace_diff_control.json.gz

Differences to expect, and why:

- HTA's path begins at the first operator and has no time between operators of a thread: Python is free there, and its
  length is less than the step by that time. Here the path always adds up to the step.
- HTA draws no edges between host threads. Where autograd runs on a thread of its own, no path leads through both, and
  HTA's longest path takes the stream instead: the time in which the GPU waits for launches appears as
  « gpu_kernel_kernel_overhead ».
- HTA knows synchronization from ``cuda_sync`` events only. Older traces have none, and the waits are inferred here.
- HTA calls a stream's gap host wait if the next kernel was launched after the one before had ended, kernel wait if it
  is under 30 µs otherwise, and other; the events it calls other are dependencies here. What is launched late and waits
  for another stream as well is a host wait there and here is what it waited for last.
"""

from __future__ import annotations

import argparse
import logging
import warnings
from collections import defaultdict
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from predictor.replay.files.events import RankTrace
from predictor.replay.files.kineto import read_trace
from predictor.replay.graph.build_graph import graph_between
from predictor.replay.graph.gaps import NO_TASK, GapKind, gaps
from predictor.replay.graph.local_graph import EdgeKind, LocalGraph, TaskKind
from predictor.replay.graph.steps import StepWindow
from tests.critical_parts import critical_parts

CPU, COMPUTE, COMMUNICATION = "cpu_bound", "gpu_compute_bound", "gpu_communication_bound"
BETWEEN, LAUNCH = "gpu_kernel_kernel_overhead", "gpu_kernel_launch_overhead"
CLASSES = (CPU, COMPUTE, COMMUNICATION, BETWEEN, LAUNCH)
ON_HOST = (TaskKind.HOST, TaskKind.WAIT)


def our_path(local: LocalGraph) -> dict[str, float]:
    """Return the critical path in the classes of HTA, in µs."""
    us = dict.fromkeys(CLASSES, 0.0)
    for part in critical_parts(local):
        kind = part.task.kind
        on_gpu = COMMUNICATION if kind is TaskKind.COLLECTIVE else COMPUTE
        us[CPU if kind in ON_HOST else on_gpu] += part.us
        if kind in ON_HOST:
            us[CPU] += part.lag_us
        else:
            us[LAUNCH if part.edge is EdgeKind.LAUNCH else BETWEEN] += part.lag_us
    return us


def their_path(analysis: Any, annotation: str, instance: int) -> dict[str, float]:
    """Return HTA's critical path of an annotation, in µs."""
    graph, is_found = analysis.critical_path_analysis(
        rank=analysis_rank(analysis), annotation=annotation, instance_id=instance
    )
    if not is_found:
        return {}
    edges = graph.get_critical_path_breakdown()
    sums = edges.groupby("bound_by").duration.sum().to_dict()
    return {name: float(sums.get(name, 0.0)) for name in CLASSES}


def analysis_rank(analysis: Any) -> int:
    """Return the rank that HTA read."""
    return int(next(iter(analysis.t.traces)))


def our_idle(local: LocalGraph) -> dict[str, dict[str, float]]:
    """Return the gaps between tasks of every stream, by stream and kind, in µs."""
    idle: defaultdict[str, dict[str, float]] = defaultdict(lambda: dict.fromkeys(GapKind, 0.0))
    begun = set()
    first = {row: min(task.start_us for task in local.tasks if task.row == row) for row in range(len(local.rows))}
    for gap in gaps(local):
        label = local.rows[gap.row]
        if label.startswith("stream") and gap.task != NO_TASK and gap.start_us >= first[gap.row]:
            idle[label][gap.kind] += gap.us
            begun.add(label)
    return dict(idle)


def their_idle(analysis: Any) -> dict[str, dict[str, float]]:
    """Return HTA's idle time of every stream, by stream and category, in µs."""
    rank = analysis_rank(analysis)
    frame = analysis.get_idle_time_breakdown(ranks=[rank], visualize=False)[0]
    idle: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for row in frame.to_dict("records"):
        idle[f"stream {row['stream']}"][row["idle_category"]] = float(row["idle_time"])
    return dict(idle)


def windows_named(trace: RankTrace, annotation: str) -> list[StepWindow]:
    """Return the annotations whose names contain a text, as HTA looks for them; for "" the whole trace."""
    if not annotation:
        return [StepWindow("whole trace", 0.0, max(event.end_us for event in trace.events))]
    return [
        StepWindow(event.name, event.start_us, event.end_us)
        for event in trace.events
        if annotation in event.name and not trace.rows[event.row].is_gpu
    ]


def report(path: Path, annotation: str, instance: int) -> None:
    """Print both analyses of a trace."""
    trace = read_trace(path)
    windows = windows_named(trace, annotation)
    if not windows:
        annotation, instance = "", 0
        windows = windows_named(trace, "")
    window = windows[min(instance, len(windows) - 1)]
    local = graph_between(trace, window)
    hta = import_module("hta.trace_analysis")  # untyped, and not installed where the project is checked
    files = {trace.rank or 0: str(path.resolve())}
    analysis = hta.TraceAnalysis(trace_files=files, trace_dir="/", include_last_profiler_step=True)
    print(f"{path.name}, {window.label}: measured {local.step_us:.0f} µs")
    ours, theirs = our_path(local), their_path(analysis, annotation, instance)
    print(f"  {'critical path, µs':28} {'here':>12} {'HTA':>12}")
    for name in CLASSES:
        print(f"  {name:28} {ours[name]:12.0f} {theirs.get(name, float('nan')):12.0f}")
    print(f"  {'length':28} {sum(ours.values()):12.0f} {sum(theirs.values()):12.0f}")
    _report_idle(our_idle(graph_between(trace, windows_named(trace, "")[0])), their_idle(analysis))


def _report_idle(ours: Mapping[str, Mapping[str, float]], theirs: Mapping[str, Mapping[str, float]]) -> None:
    print("  idle between the tasks of a stream, whole trace, µs")
    for stream in sorted({*ours, *theirs}):
        here = ", ".join(f"{kind} {us:.0f}" for kind, us in ours.get(stream, {}).items() if us)
        there = ", ".join(f"{kind} {us:.0f}" for kind, us in theirs.get(stream, {}).items() if us)
        sums = (sum(ours.get(stream, {}).values()), sum(theirs.get(stream, {}).values()))
        print(f"  {stream:10} here {sums[0]:.0f} ({here or 'none'})")
        print(f"  {'':10} HTA  {sums[1]:.0f} ({there or 'none'})")


def main() -> None:
    """Compare the traces named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="+", type=Path)
    parser.add_argument("--annotation", default="ProfilerStep", help="text in the name of the annotation to compare")
    parser.add_argument("--instance", type=int, default=1, help="which of them, counted from 0")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    for path in chosen.traces:
        report(path, chosen.annotation, chosen.instance)


if __name__ == "__main__":
    main()
