"""Rate of a matrix product after seconds without a pause, over its rate in single bursts.

Operators are timed in bursts between idle moments, in which a GPU cools down and clocks up; a training step runs at the
clocks that its power and its temperature allow for hours. The ratio of the two rates is the device's own, and is stored
with the system. Inputs are random: zeros draw less power and run faster.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import median

from microbench.call import DTYPES
from microbench.clocks import device_us
from microbench.device import Device
from microbench.nvml import gpu_state
from microbench.rows import DeviceState

SIZE = 8192
WARM_UP, BURSTS, PAUSE_S = 3, 12, 0.05
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


def measure_sustained(device: Device, precision: str, seconds: float) -> Sustained:
    """Run one product in bursts, then without a pause for so long."""
    import torch

    a, b = (torch.randn(SIZE, SIZE, device=device.kind, dtype=getattr(torch, DTYPES[precision])) for _ in range(2))
    out = torch.empty_like(a)

    def product() -> object:
        return torch.mm(a, b, out=out)

    device_us(product, WARM_UP)
    bursts_us = []
    for _ in range(BURSTS):
        time.sleep(PAUSE_S)
        bursts_us.append(device_us(product, 1))
    block = max(1, int(BLOCK_S * 1e6 / median(bursts_us)))
    blocks_us: list[float] = []
    state = DeviceState()
    start = time.perf_counter()
    while time.perf_counter() - start < seconds or not blocks_us:
        blocks_us.append(device_us(product, block) / block)
        state = gpu_state()
    settled_us = blocks_us[int(len(blocks_us) * (1.0 - SETTLED_SHARE)) :]
    mflop = 2.0 * SIZE**3 / 1e6  # per µs: TFLOP/s
    return Sustained(mflop / median(bursts_us), mflop / median(settled_us), time.perf_counter() - start, state)
