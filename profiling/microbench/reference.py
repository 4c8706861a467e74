"""The reference kernel: a matrix product whose time says how busy a machine is.

It is timed beside every table while a machine is measured, and beside every run that is verified: now over then is the
drift of the machine. Beside tables of a CPU it is processor time, as theirs is (timing.py), so that it says what they
hold, however busy the machine was. Beside a run it is time on the wall, as a step's is. There the mean over a time that
is long against the scheduler's slices counts what other processes take, which a median of short calls would hide. A run
of several ranks is compared with as many processes at once.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from microbench.processes_at_once import answers_at_once, say, wait_for_the_others

SIZES = {"cpu": 512, "cuda": 1024}
SECONDS, SECONDS_ON_THE_WALL = 0.25, 1.0  # the latter long against the scheduler's slices, some 10 ms


def reference_us(kind: str, seconds: float = SECONDS, *, on_the_wall: bool = False) -> float:
    """Return the mean time of the product in fp32 with one thread, in µs.

    Args:
        kind: cpu or cuda, as torch names it; of several GPUs the current one.
        seconds: how long it is repeated.
        on_the_wall: also on a CPU, where it is processor time otherwise.
    """
    import torch

    clock = time.thread_time if kind == "cpu" and not on_the_wall else time.perf_counter

    size, threads = SIZES[kind], torch.get_num_threads()
    cuda: Any = torch.cuda if kind == "cuda" else None
    torch.set_num_threads(1)
    with torch.no_grad():
        a, b = (torch.ones(size, size, device=kind) for _ in range(2))
        calls = -1  # the first is the warm-up
        began, start = time.perf_counter(), clock()
        while calls < 1 or time.perf_counter() - began < seconds:
            torch.mm(a, b)
            if cuda is not None:
                cuda.synchronize()
            calls += 1
            if not calls:
                began, start = time.perf_counter(), clock()
        us = (clock() - start) * 1e6 / calls
    torch.set_num_threads(threads)
    return us


def slowest_us(kind: str, processes: int) -> float:
    """Return the slowest of so many processes that time the product at once on the wall, each on a GPU of its own.

    Raises:
        MeasureError: a process ended with an error.
    """
    command = (sys.executable, "-m", "microbench.reference", kind)
    timed = answers_at_once([(*command, str(rank)) for rank in range(processes)], "the reference kernel")
    return max(map(float, timed))


def main() -> None:
    """Get ready, wait for the others, then print the time."""
    import torch

    kind, rank = sys.argv[1], int(sys.argv[2])
    if kind == "cuda":
        torch.cuda.set_device(rank % torch.cuda.device_count())
    reference_us(kind, 0.0)
    if wait_for_the_others():
        say(json.dumps(reference_us(kind, SECONDS_ON_THE_WALL, on_the_wall=True)))


if __name__ == "__main__":
    main()
