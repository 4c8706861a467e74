"""Conventions of mixed-precision training: precision of operators' outputs, and casts of their inputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import reduce

from predictor.replay.precision.operator_graph import Precision

FP32, TF32, FP16, BF16, FP8, INT8 = (
    Precision.FP32,
    Precision.TF32,
    Precision.FP16,
    Precision.BF16,
    Precision.FP8,
    Precision.INT8,
)


@dataclass(frozen=True, slots=True)
class PrecisionRules:
    """What a precision means for the tensors around an operator; what a mapping lacks is as the operator computes.

    Attributes:
        inputs: precision of its inputs and weights. TF32 is a way to multiply fp32 tensors.
        outputs: precision of its output. int8 kernels write their fp32 sums (QSync, ``output_bit_mapping``); fp8
            products have 16-bit results (Transformer Engine).
        gradients: precision of the gradients that its backward reads and writes. The backward of an int8 operator
            computes in fp16 (QSync, ``output_bit_mapping_bwd``).
        weights: precision of the master copies that the optimizer updates.
        shares_casts: operators in one precision that read one tensor share its cast, and that of its gradient.
            PyTorch's autocast casts for each of them: it keeps casts of weights alone.
    """

    inputs: Mapping[Precision, Precision] = field(default_factory=lambda: {TF32: FP32})
    outputs: Mapping[Precision, Precision] = field(default_factory=lambda: {TF32: FP32, INT8: FP32, FP8: BF16})
    gradients: Mapping[Precision, Precision] = field(default_factory=lambda: {TF32: FP32, INT8: FP16, FP8: BF16})
    weights: Precision = FP32
    shares_casts: bool = False

    def input_of(self, precision: Precision) -> Precision:
        """Return the precision of the inputs of an operator that computes in ``precision``."""
        return self.inputs.get(precision, precision)

    def output_of(self, precision: Precision) -> Precision:
        """Return the precision of its output."""
        return self.outputs.get(precision, precision)

    def gradient_of(self, precision: Precision) -> Precision:
        """Return the precision of the gradients that its backward reads and writes."""
        return self.gradients.get(precision, precision)


RULES = PrecisionRules()


def wider(left: Precision, right: Precision) -> Precision:
    """Return what an operator computes in whose two inputs have these precisions.

    The wider one; fp32 for two of the same width, such as fp16 and bf16, as neither holds the other.
    Source: PyTorch, "Tensor Attributes", type promotion (``torch.promote_types``).
    """
    if left is right:
        return left
    if left.bytes == right.bytes:
        return FP32
    return left if left.bytes > right.bytes else right


def widest(precisions: Iterable[Precision]) -> Precision:
    """Return what an operator computes in whose inputs have these precisions; there is at least one."""
    return reduce(wider, precisions)
