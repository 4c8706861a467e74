"""Gradient of a linear layer's weight, added to those of earlier micro-batches in fp32 (Megatron-LM's main_grad)."""

from dataclasses import replace

from predictor.core.costs.operator import FP32_WEIGHT_GRADIENT, Direction, Shape, linear_gradient, linear_work
from predictor.core.costs.work import ELEMENT_BYTES, Work

SUM_BYTES = 2 * 4  # per weight: the fp32 sum is read and written


def _work(shape: Shape, direction: Direction, num_multiprocessors: int) -> Work:
    """The product, whose result is a sum in fp32."""
    m, _, n = shape
    flops, size_bytes, extras = linear_work(shape, direction, num_multiprocessors)
    return Work(flops, size_bytes + m * n * (SUM_BYTES - ELEMENT_BYTES), extras)


OPERATOR = replace(
    linear_gradient(FP32_WEIGHT_GRADIENT, source="Megatron-LM --gradient-accumulation-fusion; 2·m·k·n FLOP"),
    work=_work,
    precisions=("fp16", "bf16"),  # in fp32 the gradient is as wide as the sum
)
