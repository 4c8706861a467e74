"""Program of every rank of a recorded run: ``python -m microbench.traced.rank SETTINGS FOLDER RANK``.

Standard output has nothing of its own: the results are files in the folder.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import timedelta
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.profiler import ExecutionTraceObserver, ProfilerActivity, profile, schedule

from microbench.device import free_memory_bytes
from microbench.errors import MeasureError
from microbench.traced.settings import StepTimes, TraceSettings, write_json
from microbench.traced.slim import kept_steps, slim_trace, step_marks, step_us, write_gz
from microbench.traced.training import Training
from predictor.core.base.allocator import keep_freed_memory

PAGE, HUGE_PAGE = 4096, 2**21
MADV_HUGEPAGE = 14  # Source: Linux, include/uapi/asm-generic/mman-common.h.
# What a step may need anew, in bytes of the parameters: gradients, and an optimizer's two temporary tensors.
TIMES_PARAMETERS = 2.5
LARGEST_SHARE = 0.3  # of the free memory, by all ranks of the machine


def reserve(parameter_bytes: int, steps: int, ranks: int) -> int:
    """Fault in pages that the C library keeps, and return their bytes.

    While freed memory stays with the process, a tensor finds the block that the step before has freed. The profiler's
    notes, which stay until it stops, cut pieces off those blocks: the next step's largest tensors no longer fit, and
    take new pages (a BERT layer with its embedding: 68 000 page faults a profiled step, and none of an unprofiled one).
    """
    limit = int(LARGEST_SHARE * free_memory_bytes() / ranks)
    wanted = min(int(TIMES_PARAMETERS * parameter_bytes * steps), limit)
    if wanted < HUGE_PAGE:
        return 0
    room = torch.empty(wanted, dtype=torch.uint8)
    _ask_for_huge_pages(room.data_ptr(), wanted)
    room.fill_(0)
    return wanted


def _ask_for_huge_pages(address: int, size: int) -> None:
    """Ask Linux to fault the pages in 2 MiB at once, where it may; everything works without."""
    if not sys.platform.startswith("linux"):
        return
    try:
        madvise = ctypes.CDLL(None).madvise
    except (OSError, AttributeError):
        return
    start = -(-address // PAGE) * PAGE
    madvise(ctypes.c_void_p(start), ctypes.c_size_t((size - (start - address)) // PAGE * PAGE), MADV_HUGEPAGE)


NUMBER = "Record function id"
THREAD_NODE = "[pytorch|profiler|execution_trace|"
CALLS = ("cpu_op", "user_annotation")


def _attribute(node: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    return next((entry for entry in node.get("attrs", ()) if entry["name"] == name), None)


def _threads(trace: Mapping[str, Any]) -> list[list[dict[str, Any]]]:
    """Return the calls of the last marked step by thread, in their order."""
    mark = step_marks(trace)[-1]
    begin, end = float(mark["ts"]), float(mark["ts"]) + float(mark["dur"])
    threads: defaultdict[object, list[dict[str, Any]]] = defaultdict(list)
    for event in trace["traceEvents"]:
        if event.get("cat") in CALLS and event is not mark and begin <= float(event["ts"]) <= end:
            threads[event["tid"]].append(event)
    # What encloses others begins first, or with them.
    return [sorted(calls, key=lambda call: (call["ts"], -call["dur"])) for calls in threads.values()]


def _tied(nodes: Sequence[Mapping[str, Any]], calls: Sequence[Mapping[str, Any]]) -> list[tuple[int, int]]:
    """Return the positions that have the same names in the same order."""
    names, others = [node["name"] for node in nodes], [call["name"] for call in calls]
    blocks = SequenceMatcher(None, names, others, autojunk=False).get_matching_blocks()
    return [(block.a + i, block.b + i) for block in blocks for i in range(block.size)]


def number_calls(execution: Mapping[str, Any], trace: Mapping[str, Any]) -> None:
    """Number the calls of an execution trace and of a trace's last step alike; 0 is a node without such a call.

    Args:
        execution: as PyTorch's ExecutionTraceObserver writes it; changed.
        trace: of the profiler, from the same run; changed.
    """
    by_thread: defaultdict[object, list[dict[str, Any]]] = defaultdict(list)
    for node in execution["nodes"]:
        number, thread = _attribute(node, "rf_id"), _attribute(node, "tid")
        if number is None or thread is None:
            continue
        if not node["name"].startswith(THREAD_NODE):
            by_thread[thread["value"]].append(node)
        number["value"] = 0
    threads = _threads(trace)
    for nodes in by_thread.values():
        nodes.sort(key=lambda node: int(node["id"]))
        matches = [_tied(nodes, calls) for calls in threads]
        best = max(range(len(threads)), key=lambda thread: len(matches[thread]), default=None)
        if best is None:
            continue
        for node, call in matches[best]:
            entry = _attribute(nodes[node], "rf_id")
            assert entry is not None
            arguments = threads[best][call]["args"]
            entry["value"] = arguments[NUMBER] = arguments["External id"]
        threads.pop(best)


# Gloo's threads tell the profiler that a collective has ended only after those who wait for it go on; a profiler that
# is gone by then leaves them to write into freed memory. Source: PyTorch, ProcessGroupGloo.cpp,
# AsyncWork::finishWorkGloo.
TRAFFIC_ENDS_S = 0.1
PROFILED_BESIDES = 2  # steps that the profiler warms up in, and that only waits
TIMEOUT = timedelta(minutes=5)


def start(settings: TraceSettings, folder: Path, rank: int) -> None:
    """Choose device and threads, and join the other ranks through a file of the folder."""
    torch.set_num_threads(settings.threads)
    if settings.device == "cuda":
        torch.cuda.set_device(rank)
    else:
        keep_freed_memory()
    if settings.ranks > 1:
        backend = "nccl" if settings.device == "cuda" else "gloo"
        meeting = f"file://{(folder / 'rendezvous').resolve()}"
        dist.init_process_group(backend, init_method=meeting, rank=rank, world_size=settings.ranks, timeout=TIMEOUT)


def settle(settings: TraceSettings) -> None:
    """Wait until everything that was launched has ended, gloo's threads included."""
    if settings.device == "cuda":
        torch.cuda.synchronize()
    time.sleep(TRAFFIC_ENDS_S)


def timed_steps(training: Training, settings: TraceSettings) -> tuple[float, ...]:
    """Return the durations of steps without a profiler, in µs."""
    times = []
    for _ in range(settings.steps):
        began = time.perf_counter_ns()
        training.step()
        if settings.device == "cuda":
            torch.cuda.synchronize()
        times.append((time.perf_counter_ns() - began) / 1e3)
    return tuple(times)


def profiled_steps(training: Training, settings: TraceSettings, path: Path) -> None:
    """Write the profiler's trace of marked steps.

    The last mark is of a step that only waits, so that the profiler is stopped outside every other.
    """
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if settings.device == "cuda" else [])]
    plan = schedule(wait=0, warmup=1, active=settings.steps + PROFILED_BESIDES)
    with profile(activities=activities, schedule=plan, record_shapes=True) as profiler:
        for _ in range(settings.steps + 1):
            training.step()
            profiler.step()
        settle(settings)
    profiler.export_chrome_trace(str(path))


def execution_trace(training: Training, settings: TraceSettings, path: Path) -> None:
    """Write PyTorch's execution trace of one more step: it takes too long for a step that is timed."""
    observer = ExecutionTraceObserver().register_callback(str(path))
    observer.start()
    training.step()
    settle(settings)
    observer.stop()
    observer.unregister_callback()


def agreed(kept: range, settings: TraceSettings) -> range:
    """Return the steps that the first rank keeps, so that all ranks keep the same."""
    if settings.ranks == 1:
        return kept
    choice = [kept]
    dist.broadcast_object_list(choice, src=0)
    return choice[0]


def record(settings: TraceSettings, folder: Path, rank: int) -> None:
    """Train and write this rank's files."""
    training = Training(settings, rank)
    for _ in range(settings.warm_up):
        training.step()
    unprofiled = timed_steps(training, settings)
    if settings.device == "cpu":
        parameter_bytes = sum(weight.numel() * weight.element_size() for weight in training.model.parameters())
        reserve(parameter_bytes, settings.steps + PROFILED_BESIDES, settings.ranks)
    whole = folder / f"whole-{rank}.json"
    profiled_steps(training, settings, whole)
    trace: dict[str, Any] = json.loads(whole.read_bytes())
    whole.unlink()
    kept = agreed(kept_steps(trace, settings.steps, settings.keep), settings)
    slim = slim_trace(trace, kept)
    profiled = step_us(trace)[: settings.steps]
    times = StepTimes(rank=rank, kept=tuple(kept), unprofiled_us=unprofiled, profiled_us=profiled)
    write_json(folder / f"steps-{rank}.json", times)
    if rank:
        training.step()
    else:
        path = folder / "execution.json"
        execution_trace(training, settings, path)
        execution = json.loads(path.read_bytes())
        number_calls(execution, slim)
        write_gz(folder / "execution-0.json.gz", execution)
    write_gz(folder / f"rank-{rank}.json.gz", slim)


def main() -> int:
    """Record one rank; 2 after one line about what was wrong."""
    settings_path, folder, rank = sys.argv[1:]
    settings = TraceSettings.model_validate_json(Path(settings_path).read_bytes())
    try:
        start(settings, Path(folder), int(rank))
        record(settings, Path(folder), int(rank))
    except MeasureError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    if settings.ranks > 1:
        dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
