"""How a matrix product falls into output tiles: features of the residual, so that it need not guess products of sizes.

Libraries pick among kernels with these tiles by shape. Source of the tiles: NVIDIA, CUTLASS profiler's instances for
Ampere, Hopper and Blackwell; "Matrix Multiplication Background User's Guide", sections on tile and wave quantization.
"""

from __future__ import annotations

from math import ceil, gcd, log, log2

from predictor.core.costs.work import GEMM_TILES

TILES = (
    (64, 128), (128, 64), (64, 256), (128, 128), (128, 192), (192, 128), (128, 256), (256, 128), (256, 192), (256, 256),
)  # fmt: skip
LARGE_TILES = 3  # from this one on
LARGEST_DIVISOR = 1024


def _waves(m: int, n: int, multiprocessors: int) -> list[float]:
    """Return, per tile of GEMM_TILES, the waves over the multiprocessors: their fraction, logarithm, and rounding."""
    result = []
    for rows, columns in GEMM_TILES:
        waves = ceil(m / rows) * ceil(n / columns) / multiprocessors
        result += [waves % 1.0, log(waves), log(ceil(waves) / waves)]
    return result


def tile_features(shape: tuple[int, ...], num_multiprocessors: int) -> tuple[float, ...]:
    """Return the features of a product (m, k) @ (k, n).

    The logarithms of its FLOPs, outputs, aspect ratio and FLOPs per byte; waves of one and of two multiprocessors a
    tile; the largest power of two that divides each size; the share of all tiles' outputs that are needed, of each tile
    and of the best.
    """
    m, k, n = shape
    flops = 2.0 * m * k * n
    sizes = [log(flops), log(m * n), log(m / n), log(flops / (2.0 * (m * k + k * n + m * n)))]
    waves = _waves(m, n, num_multiprocessors) + _waves(m, n, max(1, num_multiprocessors // 2))
    divisors = [log2(gcd(size, LARGEST_DIVISOR)) for size in shape]
    needed = []
    for rows, columns in TILES:
        tiles = ceil(ceil(m / rows) * ceil(n / columns) / num_multiprocessors) * num_multiprocessors
        needed.append(m * n / (tiles * rows * columns))
    return (*sizes, *waves, *divisors, *(log(share) for share in needed), max(needed), max(needed[LARGE_TILES:]))
