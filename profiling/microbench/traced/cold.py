"""Clock of a call with its tensors where a training step leaves them.

Between two calls of an operator the rest of the model runs, so weights and saved activations have left the cache; what
the operator before has written is still in it. So the cache is overwritten before each call, and then what was just
written is touched.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch
from torch import Tensor

from microbench.clocks import CudaClock, Samples
from microbench.device import Device
from microbench.timing import FLUSH_TIMES_CACHE, LEAST_GPU_FLUSH_BYTES

FEWEST, MOST = 5, 15


class ColdClock:
    """Times calls on one device."""

    def __init__(self, device: Device) -> None:
        """Reserve the buffer that overwrites the cache."""
        self._gpu: CudaClock | None = None
        flush_bytes = int(device.cache_bytes * FLUSH_TIMES_CACHE)
        if device.kind == "cuda":
            self._gpu = CudaClock(max(flush_bytes, LEAST_GPU_FLUSH_BYTES), FEWEST)
        else:
            self._buffer = torch.zeros(flush_bytes // 4)
        # A thread's own time has no pauses in which the host ran something else.
        self._now = time.thread_time_ns if device.multiprocessors == 1 else time.perf_counter_ns

    def time_us(self, run: Callable[[], Any], fresh: Sequence[Tensor] = ()) -> tuple[float, Any]:
        """Return the time of one call in µs, and what it returned."""
        if self._gpu is not None:
            samples = Samples()
            output = self._gpu.time(run, samples)
            return samples.best_us[-1], output
        self._buffer.add_(1)
        with torch.no_grad():
            for tensor in fresh:
                tensor.sum()
        start = self._now()
        output = run()
        return (self._now() - start) / 1e3, output


def enough(samples: Sequence[float], budget_us: float) -> bool:
    """Return whether a call was timed often enough: for its budget, within bounds."""
    return len(samples) >= FEWEST and (len(samples) >= MOST or len(samples) * median(samples) >= budget_us)
