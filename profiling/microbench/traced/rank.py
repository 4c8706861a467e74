"""Program of every rank of a recorded run: ``python -m microbench.traced.rank SETTINGS FOLDER RANK``.

Standard output has nothing of its own: the results are files in the folder.
"""

from __future__ import annotations

import json
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.profiler import ExecutionTraceObserver, ProfilerActivity, profile, schedule

from microbench.errors import MeasureError
from microbench.traced.execution import number_calls
from microbench.traced.heap import reserve
from microbench.traced.settings import StepTimes, TraceSettings, write_json
from microbench.traced.slim import kept_steps, slim_trace, step_us, write_gz
from microbench.traced.training import Training
from predictor.core.base.allocator import keep_freed_memory

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
