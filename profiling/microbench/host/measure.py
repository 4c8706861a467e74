"""The host's time per launch, of one process and of several at once, and the share of Python's collector.

What is timed is RoPE on four tokens, as single PyTorch operations with autograd: ten kernels forward, eighteen
backward, whose work is nothing beside Python, the dispatcher, the allocator and autograd. That part of a launch is the
same code whatever the device is, so it carries over from a CPU to CUDA; what a GPU adds is the driver's call, which is
not made here: ``DRIVER_US`` stands for it. What cannot be measured without a GPU: the driver's own time on this host,
and waiting in ``.item()`` for the device.

The lower decile of many calls is kept, as interruptions only ever add.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable
from statistics import median, quantiles
from typing import NamedTuple

from microbench.call import Maker
from microbench.errors import MeasureError
from microbench.kernels import rope
from microbench.processes_at_once import answers_at_once, say, wait_for_the_others
from predictor.core.costs.catalogue import catalogue

# cudaLaunchKernel, median of 1,029 calls in a public profile of Qwen1.5-0.5B on an H100's host (TraceLens,
# AMD-AGI, MIT: tests/traces). Recorded with CUPTI on, so rather too long.
DRIVER_US = 3.3
SHAPE = (4, 2, 8)  # tokens, heads, width
WARM_UP, BATCH = 200, 100
# Containers that the collector walks through, as many as a training program holds.
OBJECTS = 300_000


class Launches(NamedTuple):
    """Host time per launch in µs, the driver's left out, with what its repetitions say of it."""

    forward_us: float
    backward_us: float
    spread: float


class HostCost(NamedTuple):
    """What was measured on a host.

    Attributes:
        together: per launch of the slowest of ``ranks`` processes at once; None where one was measured.
        collector: time with Python's collector over that without.
    """

    alone: Launches
    ranks: int
    together: Launches | None
    collector: float

    @property
    def slowdown(self) -> float:
        """Return how much longer launches take with all ranks and the collector; the driver's part slows alike."""
        if self.together is None:
            return max(1.0, self.collector)
        both = (self.together.forward_us + self.together.backward_us) / (self.alone.forward_us + self.alone.backward_us)
        return max(1.0, both) * max(1.0, self.collector)


def _call() -> Callable[[], tuple[float, float]]:
    """Return a function that times one pass forward and backward, in seconds."""
    import torch

    call = rope.build(SHAPE, Maker("cpu", "fp32"))

    def once() -> tuple[float, float]:
        began = time.perf_counter()
        outputs = call.forward()
        between = time.perf_counter()
        gradients = [torch.ones_like(each) for each in outputs]
        resumed = time.perf_counter()
        torch.autograd.backward(outputs, gradients)
        return between - began, time.perf_counter() - resumed

    return once


def _lower_decile(values: list[float]) -> float:
    return quantiles(values, n=10)[0]


def time_launches(seconds: float) -> Launches:
    """Time launches of this process alone, with the collector off."""
    import torch

    torch.set_num_threads(1)
    once = _call()
    kernels = catalogue()["rope"].launches
    enabled = gc.isenabled()
    gc.disable()
    try:
        for _ in range(WARM_UP):
            once()
        samples: list[tuple[float, float]] = []
        until = time.perf_counter() + seconds
        while time.perf_counter() < until or len(samples) < BATCH:
            samples += [once() for _ in range(BATCH)]
            gc.collect(0)
    finally:
        if enabled:
            gc.enable()
    forward, backward = ([sample[direction] * 1e6 / kernels[direction] for sample in samples] for direction in range(2))
    low = _lower_decile(forward)
    return Launches(low, _lower_decile(backward), median(forward) / low - 1.0)


def collector_share(seconds: float) -> float:
    """Return the time of passes with Python's collector over that without, beside many objects of a program."""
    once = _call()
    held = [[number] for number in range(OBJECTS)]

    def passes(collects: bool) -> float:
        (gc.enable if collects else gc.disable)()
        times: list[float] = []
        until = time.perf_counter() + seconds / 4
        while time.perf_counter() < until or not times:
            began = time.perf_counter()
            for _ in range(BATCH):
                once()
            times.append(time.perf_counter() - began)
        return sum(times) / len(times)

    enabled = gc.isenabled()
    try:
        ratios = [passes(True) / passes(False) for _ in range(2)]
    finally:
        (gc.enable if enabled else gc.disable)()
    del held
    return max(1.0, min(ratios))


def time_together(ranks: int, seconds: float) -> Launches:
    """Return the launches of the slowest of so many processes at once.

    Raises:
        MeasureError: a process ended with an error.
    """
    command = (sys.executable, "-m", "microbench.host.measure", str(seconds))
    timed = [Launches(*answer) for answer in answers_at_once([command] * ranks, "launches of several ranks")]
    return max(timed, key=lambda each: each.forward_us + each.backward_us)


def measure_host(ranks: int, seconds: float, say: Callable[[str], None]) -> HostCost:
    """Measure this host in about so many seconds.

    Raises:
        MeasureError: more ranks than cores, or a rank that failed.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if ranks > cores:
        raise MeasureError(f"--ranks is {ranks}; this process may use {cores} cores, and ranks that share one wait")
    share = seconds / 3
    say("one process")
    alone = time_launches(share)
    say("Python's collector")
    collector = collector_share(share)
    together = None
    if ranks > 1:
        say(f"{ranks} processes at once")
        together = time_together(ranks, share)
    return HostCost(alone, ranks, together, collector)


def main() -> None:
    """Get ready as one rank of several, wait for the others, then print the launches."""
    time_launches(0.0)
    if wait_for_the_others():
        say(json.dumps(time_launches(float(sys.argv[1]))))


if __name__ == "__main__":
    main()
