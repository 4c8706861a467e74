"""Times of casts between precisions over the sizes of tensors.

int8 is quantised with one scale per tensor, symmetric around zero: q = clamp(round(x / s), −128, 127), and x ≈ q · s
back. fp8 is E4M3 with a scale likewise, where PyTorch has the type on the device. Other casts are ``Tensor.to``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import permutations
from statistics import median
from typing import Any

import torch
from torch import Tensor

from microbench.timing import KERNEL_ERRORS
from microbench.traced.cold import FEWEST, ColdClock, enough
from predictor.replay.precision.measured_costs import CastSample

SMALLEST_EXPONENT, LARGEST_EXPONENT = 12, 26
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16, "int8": torch.int8}
LARGEST_INT8, SMALLEST_INT8 = 127, -128
BUDGET_US = 60_000.0
FP8 = "fp8"
Cast = Callable[[Tensor], Any]


def _with_fp8(device: str) -> dict[str, torch.dtype]:
    """Return the types to cast between; fp8 where a cast to it runs."""
    dtype = getattr(torch, "float8_e4m3fn", None)
    if dtype is None:
        return dict(DTYPES)
    try:
        torch.zeros(1, device=device).to(dtype).to(torch.float32)
    except KERNEL_ERRORS:
        return dict(DTYPES)
    return {**DTYPES, FP8: dtype}


def cast_of(source: str, target: str, dtypes: dict[str, torch.dtype], scale: Tensor) -> Cast:
    """Return the cast from one precision to another."""
    dtype = dtypes[target]
    if target == "int8":
        if source == "fp8":
            return lambda x: (x.float() / scale).round_().clamp_(SMALLEST_INT8, LARGEST_INT8).to(dtype)
        return lambda x: (x / scale).round_().clamp_(SMALLEST_INT8, LARGEST_INT8).to(dtype)
    if target == FP8:
        return lambda x: (x.float() / scale).to(dtype)
    if source in ("int8", FP8):
        return lambda x: x.to(dtype) * scale.to(dtype)
    return lambda x: x.to(dtype)


def _samples(cast: Cast, tensor: Tensor, clock: ColdClock, is_fresh: bool) -> float:
    fresh = [tensor] if is_fresh and tensor.is_floating_point() else []
    for _ in range(2):
        clock.time_us(lambda: cast(tensor), fresh)
    samples: list[float] = []
    while not enough(samples, BUDGET_US):
        samples.append(clock.time_us(lambda: cast(tensor), fresh)[0])
        if len(samples) >= FEWEST and sum(samples) > BUDGET_US:
            break
    return median(samples)


def measure_casts(
    device: str, clock: ColdClock, exponents: range | None = None, precisions: Sequence[str] | None = None
) -> Iterator[tuple[str, str, list[CastSample]]]:
    """Yield every ordered pair of precisions with a sample of each size, 2 to the power of 12 to 26 elements.

    Args:
        device: to measure.
        clock: of the device.
        exponents: of the sizes, instead.
        precisions: to cast between, instead of all.
    """
    dtypes = _with_fp8(device)
    scale = torch.tensor(0.05, device=device)
    for source, target in permutations(precisions or dtypes, 2):
        cast = cast_of(source, target, dtypes, scale)
        samples = []
        for exponent in exponents or range(SMALLEST_EXPONENT, LARGEST_EXPONENT + 1):
            drawn = torch.randn(2 ** min(exponent, 20), device=device).repeat(2 ** max(0, exponent - 20))
            us = _samples(cast, drawn.to(dtypes[source]), clock, is_fresh=False)
            samples.append(CastSample(numel=2**exponent, us=round(us, 3)))
        yield source, target, samples
