"""Products for seconds without a pause, with the GPU's clock, power and reasons for throttling beside them.

Blocks of a tenth of a second follow each other: the next one is queued before the host waits for the end of the last,
so the GPU never idles. Between the two the host asks the driver, once a block.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from statistics import median

from microbench.call import DTYPES, Maker
from microbench.clocks import device_us
from microbench.device import Device
from microbench.linear import linear_call
from microbench.nvml import nvml, reason_names
from microbench.rows import DeviceState
from microbench.study.part import Part
from microbench.study.record import Block, Moment, Sustained, rounded
from predictor.core.costs.work import FP8_PRECISIONS

SECONDS = 5.0
BLOCK_S = 0.1
REST_S = 1.5  # before the bursts: the GPU cools down and clocks up
WARM_UP, BURSTS, PAUSE_S = 3, 8, 0.05
PART_S = SECONDS + REST_S + 2.5
# Precision, tokens, input and output features.
PRODUCTS = (
    ("bf16", 8192, 8192, 8192),
    ("bf16", 8192, 4096, 28672),  # Llama 3 8B, FFN up and gate
    ("bf16", 8192, 14336, 4096),  # FFN down
    ("fp8", 8192, 8192, 8192),
    ("bf16", 8192, 4096, 6144),  # queries, keys, values
    ("bf16", 8192, 4096, 128256),  # head
    ("bf16", 16384, 16384, 16384),
    ("bf16", 2048, 8192, 7168),  # Llama 3 70B, FFN up and gate, tensor parallel 8
)


def product(precision: str, m: int, k: int, n: int, device: str) -> Callable[[], object]:
    """Return a run of the product (m, k) @ (k, n) on random numbers; in fp8 of quantised matrices."""
    import torch

    if precision in FP8_PRECISIONS:
        return linear_call((m, k, n), Maker(device, precision)).forward
    dtype = getattr(torch, DTYPES[precision])
    a, b = (torch.randn(*sizes, device=device, dtype=dtype) for sizes in ((m, k), (n, k)))
    return partial(torch.mm, a, b.t(), out=torch.empty(m, n, device=device, dtype=dtype))


def moment(began: float) -> Moment:
    """Return the GPU's state now."""
    opened = nvml()
    state = DeviceState() if opened is None else opened.state()
    reasons = None if opened is None else opened.event_reasons()
    return Moment(
        at_s=round(time.perf_counter() - began, 4),
        energy_j=None if opened is None else opened.energy_j(),
        event_reasons=None if reasons is None else reason_names(reasons),
        **state._asdict(),
    )


def without_pause(run: Callable[[], object], per_block: int, seconds: float) -> tuple[list[Block], list[Moment]]:
    """Run blocks of products for so long; return their times, and the GPU's state before them and once in each."""
    import torch

    began = time.perf_counter()
    moments, blocks = [moment(began)], list[Block]()
    last = torch.cuda.Event(enable_timing=True)
    last.record()
    queued = [last]
    while not blocks or blocks[-1].end_s < seconds:
        for _ in range(per_block):
            run()
        queued.append(torch.cuda.Event(enable_timing=True))
        queued[-1].record()
        if len(queued) > 2:  # a block is queued behind the one that is waited for
            moments.append(moment(began))
            start, end, *_ = queued
            end.synchronize()
            us = float(start.elapsed_time(end)) * 1e3 / per_block
            blocks.append(Block(end_s=round(time.perf_counter() - began, 4), us=round(us, 3)))
            queued.pop(0)
    torch.cuda.synchronize()
    return blocks, moments


def measure(precision: str, m: int, k: int, n: int, device: str) -> Sustained:
    """Time a product in bursts, then without a pause."""
    run = product(precision, m, k, n, device)
    device_us(run, WARM_UP)
    time.sleep(REST_S)
    bursts_us = []
    for _ in range(BURSTS):
        time.sleep(PAUSE_S)
        bursts_us.append(device_us(run, 1))
    per_block = max(1, round(BLOCK_S * 1e6 / median(bursts_us)))
    blocks, moments = without_pause(run, per_block, SECONDS)
    return Sustained(
        precision=precision,
        m=m,
        k=k,
        n=n,
        burst_us=rounded(bursts_us),
        products_per_block=per_block,
        blocks=tuple(blocks),
        moments=tuple(moments),
    )


def parts(device: Device) -> list[Part]:
    """Return a part per product."""
    return [Part(" ".join(map(str, key)), PART_S, partial(measure, *key, device.kind)) for key in PRODUCTS]
