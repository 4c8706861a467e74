"""Rate of a matrix product after seconds without a pause, over its rate in single bursts.

Operators are timed in bursts between idle moments, in which a GPU cools down and clocks up; a training step runs at the
clocks that its power and its temperature allow for hours. The ratio of the two rates is the device's own, and is stored
with the system. Inputs are random: zeros draw less power and run faster.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

from microbench.call import DTYPES
from microbench.device import Device
from microbench.nvml import gpu_state
from microbench.rows import DeviceState

SIZE = 8192
BURSTS, PAUSE_S = 12, 0.05
BLOCK_S = 0.25  # a block of products without a look at the clock
SETTLED_SHARE = 0.5  # of the time, at its end: by then power and temperature have settled


@dataclass(frozen=True, slots=True)
class Sustained:
    """Rates of one matrix product of SIZE³.

    Attributes:
        burst_tflop_per_s: the median of single products, each after a pause.
        sustained_tflop_per_s: the median of blocks in the second half of a run without a pause.
        seconds: of that run.
        state: of the GPU at its end.
    """

    burst_tflop_per_s: float
    sustained_tflop_per_s: float
    seconds: float
    state: DeviceState

    @property
    def ratio(self) -> float:
        """Return the sustained rate over that of bursts."""
        return self.sustained_tflop_per_s / self.burst_tflop_per_s


def _seconds(run: Callable[[], Any], times: int, events: tuple[Any, Any]) -> float:
    """Return the GPU's time for so many runs in a row."""
    start, end = events
    start.record()
    for _ in range(times):
        run()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3


def measure_sustained(device: Device, precision: str, seconds: float) -> Sustained:
    """Run one product in bursts, then without a pause for so long."""
    import torch

    cuda: Any = torch.cuda
    a, b = (torch.randn(SIZE, SIZE, device=device.kind, dtype=getattr(torch, DTYPES[precision])) for _ in range(2))
    out = torch.empty_like(a)
    events = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)

    def run() -> Any:
        return torch.mm(a, b, out=out)

    _seconds(run, 3, events)
    bursts = []
    for _ in range(BURSTS):
        time.sleep(PAUSE_S)
        bursts.append(_seconds(run, 1, events))
    block = max(1, int(BLOCK_S / median(bursts)))
    blocks: list[float] = []
    state = DeviceState()
    start = time.perf_counter()
    while time.perf_counter() - start < seconds or not blocks:
        blocks.append(_seconds(run, block, events) / block)
        state = gpu_state()
    settled = blocks[int(len(blocks) * (1.0 - SETTLED_SHARE)) :]
    tflop = 2.0 * SIZE**3 / 1e12
    return Sustained(tflop / median(bursts), tflop / median(settled), time.perf_counter() - start, state)
