"""Measure a traced step's operators on as many processes at once as trained: they shared caches and memory then."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from microbench.device import Device, find_device
from microbench.traced.processes import run_ranks
from predictor.replay.precision.measured_costs import MeasuredOperator

TIMEOUT_S = 1800.0


@dataclass(frozen=True, slots=True)
class TracedCosts:
    """Rows of all ranks joined, and what was not measured: name, share of the step and reason."""

    rows: tuple[MeasuredOperator, ...]
    unsupported: tuple[tuple[str, float, str], ...]


def measure_here(
    path: Path, step: int | None, precisions: Sequence[str], device: Device, say: Callable[[str], None]
) -> dict[str, Any]:
    """Measure in this process; return rows and what was not measured as JSON has them."""
    from microbench.traced.calls import distinct_calls
    from microbench.traced.cold import ColdClock
    from microbench.traced.remeasure import measure_calls
    from predictor.replay.files.kineto import read_trace
    from predictor.replay.graph.build_graph import local_graph

    trace = read_trace(path)
    graph = local_graph(trace, step)
    calls, unknown = distinct_calls(graph, trace.events)
    result = measure_calls(calls, precisions, ColdClock(device), device.kind, say)
    missing = [*result.unsupported, *((name, us, "no values of its arguments") for name, us in unknown.items())]
    sums: dict[tuple[str, str], float] = {}
    for name, us, reason in missing:
        sums[name, reason] = sums.get((name, reason), 0.0) + us / graph.step_us
    longest = sorted(sums.items(), key=lambda entry: -entry[1])
    return {
        "rows": [row.model_dump(mode="json") for row in result.rows],
        "unsupported": [[name, share, reason] for (name, reason), share in longest],
    }


def _joined(parts: Sequence[dict[str, Any]]) -> TracedCosts:
    """Return the ranks' rows with all their samples, in the order of the first."""
    rows: dict[str, MeasuredOperator] = {}
    for part in parts:
        for content in part["rows"]:
            row = MeasuredOperator.model_validate_json(json.dumps(content))
            key = row.model_copy(update={"samples_us": ()}).model_dump_json()
            known = rows.get(key)
            samples = (known.samples_us if known else ()) + row.samples_us
            rows[key] = row.model_copy(update={"samples_us": samples})
    unsupported = tuple((str(n), float(s), str(r)) for n, s, r in parts[0]["unsupported"])
    return TracedCosts(tuple(rows.values()), unsupported)


def measure_traced(
    path: Path,
    step: int | None,
    precisions: Sequence[str],
    ranks: int | None,
    device: Device,
    say: Callable[[str], None],
) -> TracedCosts:
    """Measure the operators of a trace.

    Args:
        path: of the trace.
        step: which of its steps; None: as replay chooses.
        precisions: to measure, in turns.
        ranks: processes at once; None: as many as trained, on a CPU, and one on a GPU.
        device: to measure.
        say: takes a line of progress.

    Raises:
        MeasureError: a process failed.
        RecordError: the trace cannot be read.
    """
    if ranks is None:
        ranks = _ranks_of(path) if device.kind == "cpu" else 1
    if ranks == 1:
        return _joined([measure_here(path, step, precisions, device, say)])
    with tempfile.TemporaryDirectory() as folder:
        plan = {
            "path": str(path), "step": step, "precisions": list(precisions), "device": device.kind,
            "threads": device.multiprocessors, "out": folder,
        }  # fmt: skip
        say(f"measuring on {ranks} processes at once")
        run_ranks("microbench.traced.together", [json.dumps(plan)], ranks, device.multiprocessors, TIMEOUT_S)
        return _joined([json.loads(Path(folder, f"{rank}.json").read_bytes()) for rank in range(ranks)])


def _ranks_of(path: Path) -> int:
    from predictor.replay.files.kineto import read_trace

    return read_trace(path).world_size or 1


def main() -> int:
    """Measure as one of several processes, and write the rows into the plan's folder."""
    plan, rank = json.loads(sys.argv[1]), int(sys.argv[2])
    device = find_device(plan["device"], plan["threads"])
    part = measure_here(Path(plan["path"]), plan["step"], plan["precisions"], device, lambda line: None)
    Path(plan["out"], f"{rank}.json").write_text(json.dumps(part), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
