"""The work of one operator call: FLOPs, bytes and wave-quantised tiles.

The same numbers gate a measurement (nothing beats a peak), feed the fit (time is a non-negative sum of them) and
answer a prediction, so the three cannot disagree. Sizes are of 2-byte elements (fp16, bf16) unless a function says
otherwise.
"""

from __future__ import annotations

from math import ceil
from typing import NamedTuple

ELEMENT_BYTES = 2  # of 16 bits
# Precisions of whole steps, and those of single operators only: 8-bit matrices with a scale per tensor (Transformer
# Engine, delayed or current scaling), or per group of 1 × 128 and per block of 128 × 128 (DeepSeek-V3,
# arXiv:2412.19437, section 3.3.2).
STEP_PRECISIONS = ("fp16", "bf16", "fp32")
FP8_PRECISIONS = ("fp8", "fp8_block")
# Blackwell: 8 bits with a scale per block of 32 (OCP Microscaling Formats 1.0), and 4 bits with one per block of 16
# (NVIDIA, nvfp4).
BLACKWELL_PRECISIONS = ("mxfp8", "nvfp4")
# Those of them that exact attention exists in. Source: NVIDIA, cuDNN frontend documentation, attention.
ATTENTION_PRECISIONS = ("fp8", "mxfp8")
# Bytes of an input element, without the scales of blocks, which core/workload/recipes.py adds to what a cast writes; a
# lower bound for a product of fp8 matrices, whose result has 16 bits.
PRECISION_BYTES = {"fp16": 2, "bf16": 2, "fp32": 4, "fp8": 1, "fp8_block": 1, "mxfp8": 1, "nvfp4": 0.5}
# Precisions with the same element size and matrix peak, so that kernels run at the same rate in both.
SAME_RATE = {"bf16": ("fp16",), "fp16": ("bf16",)}
# Every size of an operator must be a multiple: cuBLASLt needs rows of fp8 matrices in whole 16 bytes; blocks are whole.
SIZE_MULTIPLES = {"fp8": 16, "fp8_block": 128, "mxfp8": 32, "nvfp4": 32}

# Output tiles of the GEMM kernels that cuBLAS picks on Ampere and Hopper for large fp16 problems.
# Source: NVIDIA, "Matrix Multiplication Background User's Guide", sections on tile and wave quantization.
GEMM_TILES = ((128, 256), (256, 128), (128, 128))


def element_bytes(precision: str) -> int:
    """Return the bytes of one element in a precision of whole steps."""
    return int(PRECISION_BYTES[precision])


class Work(NamedTuple):
    """Work of one call in one direction.

    Attributes:
        flops: floating-point operations that the result needs.
        size_bytes: bytes that any implementation must move through device memory; kernels that run one after the other
            move their own each. docs/adr/0018-least-bytes.md says how that is checked.
        extras: further terms that time may follow, e.g. FLOPs rounded up to whole waves of tiles.
    """

    flops: float
    size_bytes: float
    extras: tuple[float, ...] = ()

    def __add__(self, other: object) -> Work:
        """Add the work of two kernels that run one after the other."""
        assert isinstance(other, Work)
        extras = tuple(a + b for a, b in zip(self.extras, other.extras, strict=True))
        return Work(self.flops + other.flops, self.size_bytes + other.size_bytes, extras)


def whole_waves(blocks: int, num_multiprocessors: int) -> int:
    """Round a number of thread blocks up to full waves over the multiprocessors."""
    return ceil(blocks / num_multiprocessors) * num_multiprocessors


def matmul_work(batch: int, m: int, k: int, n: int, num_multiprocessors: int) -> Work:
    """Return the work of ``batch`` products (m, k) @ (k, n): 2·m·k·n FLOP each.

    ``extras`` holds, per tile of GEMM_TILES, the FLOPs of all output tiles rounded up to whole waves.
    """
    tiled = tuple(
        whole_waves(batch * ceil(m / rows) * ceil(n / columns), num_multiprocessors) * rows * columns * 2.0 * k
        for rows, columns in GEMM_TILES
    )
    return Work(2.0 * batch * m * k * n, float(ELEMENT_BYTES) * batch * (m * k + k * n + m * n), tiled)
