"""What no kernel beats: the peak FLOP/s of a GPU, and the peak bandwidth of its memory beyond what its cache may hold.

Measured rows passed the gate of the fit and stay as they are; times beyond them, or from another precision or GPU, are
held to both.
"""

from __future__ import annotations

from predictor.core.costs.cost import Cost, Source
from predictor.core.costs.operator import Direction, Operator, Shape
from predictor.core.costs.stand_ins import bounded
from predictor.core.costs.transfer import computes
from predictor.core.costs.work import ELEMENT_BYTES, PRECISION_BYTES
from predictor.core.hardware.hardware import Gpu


def _kernel_bytes(operator: Operator, direction: Direction, shape: Shape, sms: int, precision: str) -> float:
    """Return the bytes that the kernels of one call move at least."""
    size_bytes = operator.work(shape, direction, sms).size_bytes
    few_bits = operator.computed_in
    if not few_bits or operator.byte_sizes == "fixed":
        return size_bytes * operator.byte_scale(precision)
    if operator.gradient_products is None or direction is Direction.BACKWARD:
        return size_bytes * operator.byte_scale(few_bits)
    m, k, n = shape  # operands in few bits, their result in 16
    return PRECISION_BYTES[few_bits] * (m * k + k * n) + ELEMENT_BYTES * m * n


def least_us(operator: Operator, direction: Direction, shape: Shape, gpu: Gpu, precision: str, peak: float) -> float:
    """Return the least time of a call in microseconds; products that run one after the other need theirs each.

    Args:
        operator: of the call.
        direction: of the call.
        shape: of the call.
        gpu: that it runs on.
        precision: of the step's elements.
        peak: of the call's products, TFLOP/s.
    """
    if direction is Direction.BACKWARD and operator.gradient_products is not None:
        products = operator.gradient_products(shape)
        return sum(least_us(operator, Direction.FORWARD, part, gpu, precision, peak) for part in products)
    sms = int(gpu.num_multiprocessors.value)
    size_bytes = _kernel_bytes(operator, direction, shape, sms, precision)
    uncached = max(0.0, size_bytes - gpu.l2_cache_mb.value * 1e6)
    flops = operator.work(shape, direction, sms).flops if computes(operator) else 0.0
    return max(uncached / (gpu.memory_bandwidth_gb_per_s.value * 1e3), flops / (peak * 1e6))


def possible(cost: Cost, least: float) -> Cost:
    """Return a cost that was not measured, no part of which is shorter than ``least`` microseconds."""
    if cost.source <= Source.INTERPOLATED or cost.low_us >= least:
        return cost
    return bounded(cost, least, least)
