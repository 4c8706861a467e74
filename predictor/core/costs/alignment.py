"""Batched products of matrices whose rows do not start on 16 bytes: they run on the CUDA cores.

Tensor-core kernels of cuBLAS load 16 bytes at a time; a pointer, a leading dimension or a stride between the matrices
of a batch that is no multiple of them rules those kernels out. Heads lie next to each other in a row of queries, keys
or values, so every head begins at a multiple of its width: widths of 8 elements in 16 bits are aligned, 108 and 150 are
not. Without tensor cores a product takes its FLOPs at the fp32 rate of the CUDA cores, 1/16 of the tensor cores' on an
A100.

Source: NVIDIA, cuBLAS documentation, "Tensor Core Usage"; "Matrix Multiplication Background User's Guide", requirements
to use tensor cores. Tables hold aligned shapes only. The preparatory runs of BLOOM show it in whole steps: 162.7 s with
heads of 108 elements, 121.3 s and 124.8 s with 216 and 144 (bigscience, tr11-176B-ml, chronicles-prequel.md).
"""

from __future__ import annotations

from predictor.core.costs.cost import Cost, Source
from predictor.core.costs.operator import Operator, Shape, batched_gemm_work
from predictor.core.hardware.device_sheets import sheet_named
from predictor.core.hardware.hardware import Gpu

ALIGNED_BYTES = 16
# A product on the CUDA cores reaches between half and all of their peak; newer libraries may load fewer bytes at a time
# and keep the tensor cores, so the low end of the interval stays the regressor's.
SLOWEST = 2.0


def is_misaligned(operator: Operator, shape: Shape, element_bytes: float) -> bool:
    """Return whether the matrices of a batched product lie off the alignment that tensor cores need."""
    return operator.work is batched_gemm_work and any(size * element_bytes % ALIGNED_BYTES for size in shape[1:])


def without_tensor_cores(cost: Cost, flops: float, gpu: Gpu) -> Cost:
    """Return the cost of a product on the CUDA cores, unchanged where no data sheet says their fp32 peak.

    Args:
        cost: of the same product with tensor cores.
        flops: that it needs.
        gpu: that it runs on.
    """
    sheet = sheet_named(gpu.name)
    if sheet is None or "fp32" not in sheet.peak_tflop_per_s:
        return cost
    us = max(cost.us, flops / (sheet.peak_tflop_per_s["fp32"] * 1e6))
    return Cost(us, cost.low_us, max(cost.high_us, SLOWEST * us), max(cost.source, Source.ANALYTIC))
