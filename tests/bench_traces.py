"""How long a large trace takes to read, and how much memory: ``python -m tests.bench_traces [--events N] [--gz]``.

It writes a trace as the profiler does, with shapes, flow events and kernels of every operator, and reads it in a
process of its own. The aim is a million events in under 10 s and 2 GB.
"""

from __future__ import annotations

import argparse
import gzip
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

START_US = 4203669603187.439
ROOT = Path(__file__).resolve().parents[1]
HEAD = """{
  "schemaVersion": 1,
  "deviceProperties": [
    {
      "id": 0, "name": "NVIDIA A100-SXM4-80GB", "totalGlobalMem": 84974239744, "numSms": 108
    }
  ],
  "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 1, "pg_count": 1},
  "record_shapes": 1,
  "displayTimeUnit": "ms",
  "baseTimeNanoseconds": 1735632360000000000,
  "traceEvents": [
"""
TAIL = (
    '  {"name": "Record Window End", "ph": "i", "s": "g", "pid": "", "tid": "", "ts": 0}\n  ],\n  "traceName": "t"\n}\n'
)
KERNEL = (
    "void cutlass::Kernel<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128_32x3_tn_align8>"
    "(cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128_32x3_tn_align8::Params)"
)
OF_KERNEL = {
    "queued": 0,
    "device": 0,
    "context": 1,
    "stream": 7,
    "registers per thread": 230,
    "shared memory": 147456,
    "blocks per SM": 1.185185,
    "warps per SM": 9.481482,
    "grid": [32, 4, 1],
    "block": [256, 1, 1],
    "est. achieved occupancy %": 13,
}
OPERATORS = (  # name, start and duration within 40 µs, number of tensors
    ("aten::linear", 0.0, 38.5, 3),
    ("aten::t", 0.6, 3.2, 1),
    ("aten::transpose", 1.1, 2.0, 1),
    ("aten::as_strided", 1.7, 0.6, 1),
    ("aten::addmm", 5.0, 32.0, 3),
)
EVENTS_OF_CALL = len(OPERATORS) + 4  # a launch, a kernel and the two ends of the arrow between them


def trace_events(count: int) -> Iterator[str]:
    """Return events as the profiler prints them, at least as many as asked for."""
    for call in range(-(-count // EVENTS_OF_CALL)):
        base = START_US + 40.0 * call
        step = f"ProfilerStep#{call // 20000}"
        if call % 20000 == 0:
            yield event("user_annotation", step, 1, 1, base, 799999.0, {"External id": call, "Ev Idx": call})
        for number, (name, start, lasts, tensors) in enumerate(OPERATORS):
            args = {
                "External id": 10 * call + number + 1,
                "Record function id": 10 * call + number + 1,
                "Concrete Inputs": [""] * tensors,
                "Input type": ["c10::BFloat16"] * tensors,
                "Input Strides": [[4096 + call % 7, 1]] * tensors,
                "Input Dims": [[2048, 4096 + call % 7]] * tensors,
                "Ev Idx": 10 * call + number,
            }
            if number in (0, 4):
                args |= {"Sequence number": call, "Fwd thread id": 0}
            yield event("cpu_op", name, 1, 1, base + start, lasts, args)
        flow = {"id": call + 1, "cat": "ac2g", "name": "ac2g"}
        launch = {"External id": 10 * call + 5, "cbid": 211, "correlation": call + 1}
        yield event("cuda_runtime", "cudaLaunchKernel", 1, 1, base + 20.0, 5.0, launch)
        yield json.dumps({"ph": "s", "pid": 1, "tid": 1, "ts": round(base + 20.0, 3), **flow})
        kernel = {"External id": 10 * call + 5, "correlation": call + 1, **OF_KERNEL}
        yield event("kernel", KERNEL, 0, 7, base + 26.0, 36.25, kernel)
        yield json.dumps({"ph": "f", "pid": 0, "tid": 7, "ts": round(base + 26.0, 3), "bp": "e", **flow})


def event(category: str, name: str, pid: int, tid: int, start: float, lasts: float, args: Mapping[str, object]) -> str:
    """Return a complete event."""
    times = {"ts": round(start, 3), "dur": lasts}
    return json.dumps({"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, **times, "args": args})


def write_trace(path: Path, count: int) -> int:
    """Write a trace of at least so many events; return their number."""
    written = 0
    with gzip.open(path, "wt", compresslevel=1) if path.suffix == ".gz" else path.open("w") as stream:
        stream.write(HEAD)
        for text in trace_events(count):
            stream.write(f"  {text},\n")
            written += 1
        stream.write(TAIL)
    return written


def read_in_process(path: Path) -> None:
    """Read a trace and print how long it took, and the most memory that the process had."""
    from predictor.replay.files.kineto import read_trace
    from predictor.replay.graph.steps import choose_step

    began, worked = time.perf_counter(), time.process_time()
    trace = read_trace(path)
    read, worked = time.perf_counter() - began, time.process_time() - worked
    began = time.perf_counter()
    step = choose_step(trace)
    chosen = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    print(f"read {read:.1f} s ({worked:.1f} s of a core), {peak:.2f} GB")
    print(f"{len(trace.events)} events with times, {len(trace.arrows)} arrows")
    print(f"{step.label} chosen in {chosen:.2f} s")


def main() -> None:
    """Write a trace, and read it in another process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--gz", action="store_true", help="compressed")
    parser.add_argument("--read", type=Path, help="only read this trace")
    arguments = parser.parse_args()
    if arguments.read:
        read_in_process(arguments.read)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / ("trace.json.gz" if arguments.gz else "trace.json")
        written = write_trace(path, arguments.events)
        print(f"{written} events, {path.stat().st_size / 1e6:.0f} MB", flush=True)
        subprocess.run([sys.executable, "-m", "tests.bench_traces", "--read", str(path)], cwd=ROOT, check=True)


if __name__ == "__main__":
    main()
