"""Recipes of low precision as data: the precision of products, and the bytes that casting their operands moves.

Two engines run them: Transformer Engine (under Megatron-LM, NeMo), and torchao (under torch.compile).

Transformer Engine casts a matrix in both layouts that its products read: rows for output and data gradient, columns for
the weight gradient. With a scale per tensor the second layout is a transposed copy, since Hopper's tensor cores take
8-bit operands with the summed dimension last only. Delayed scaling knows the scale beforehand, and its norms write 8
bits themselves; current scaling reads the tensor first for its largest number. Scales of blocks need no such reading.
NVFP4 reads for the scale of the tensor, casts rows, and casts columns in a second kernel behind a Hadamard transform,
which weights go without; gradients are rounded stochastically.
Source: Transformer Engine, pytorch/module/linear.py, layernorm_linear.py and csrc/quantizer.cpp; NVIDIA 2025,
"Pretraining LLMs with NVFP4", arXiv:2509.25149.

torchao's kernels are fused by the compiler: the search for the largest number with the kernel before the cast. A
weight's layouts are cast one by one, for each micro-batch. Rows need a transposed copy in 16 bits, and outputs of the
backward pass, whose products add in fp32, are scaled in a kernel of their own: the one that scales rows itself is slow
then. Source: torchao, float8/float8_ops.py, addmm_float8_unwrapped (post_inverse_scale), pull request 1325.

Data-centre Blackwell multiplies 8-bit operands in any layout, so that Transformer Engine keeps weights with one scale
in one layout there, and transposes none (``ONE_LAYOUT``). Source: Transformer Engine, pytorch/csrc/quantizer.cpp,
Float8Quantizer::create_tensor; common/transformer_engine.cpp, nvte_is_non_tn_fp8_gemm_supported.
Source: torchao/testing/training/roofline_utils.py, get_tensor_memory_traffic_ovhd_s.
"""

from __future__ import annotations

from typing import NamedTuple

from predictor.core.costs.work import ELEMENT_BYTES
from predictor.core.workload.run_choices import GemmRecipe

READ = float(ELEMENT_BYTES)  # of the 16-bit number that every cast reads
# Bytes of a number written, with its share of its block's scale, which PRECISION_BYTES leaves out.
FP8, MXFP8, BLOCKS, NVFP4 = 1.0, 1.0 + 1 / 32, 1.0 + 4 / 128, 0.5 + 1 / 16
# How much slower stochastic rounding casts than rounding to nearest: 4.5 and 6.4 TB/s of a B300.
# Source: github.com/NVIDIA/TransformerEngine, pull request 2412.
STOCHASTIC = 6.4 / 4.5
# How much longer a cast to blocks of 32 takes than streaming its bytes: the kernel computes (pull request 1628 there).
# All casts of a layer's twelve products, 2.48e9 elements of 4.06 bytes, take 1.82 ms on B300, 1.42 as a stream.
# The same benchmark has 0.93 and 0.61 ms for fp8's 6 and 4 bytes of 6.56e8 elements on H200, as streams take them.
# Source: Transformer Engine, docs/examples/gemm_profiling/gemm_profiling.rst, with casts less without.
MXFP8_OVER_STREAM = 1.28


class Casts(NamedTuple):
    """Bytes that casting an operand reads and writes, per element.

    Attributes:
        normalized: an input that a norm has just written, beyond what the norm writes anyway.
        activation: any other input.
        gradient: of an output.
        weight: of a weight, in the forward pass.
        weight_again: of a weight, in the backward pass.
        launches: kernels of one cast.
        grouped: as many cast the matrices of all experts.
        rescaled: of an output of the backward products, which a kernel behind them scales.
    """

    normalized: float
    activation: float
    gradient: float
    weight: float
    weight_again: float
    launches: int
    grouped: bool = False
    rescaled: float = 0.0


class Recipe(NamedTuple):
    """What a recipe of low precision runs.

    Attributes:
        product: precision of the products.
        gathered: bytes of an element that tensor-parallel ranks gather.
        kept: bytes of an input that is kept for the backward pass.
        weights: bytes of a weight in both layouts.
        transposed: bytes that transposing a weight reads and writes, where it arrives cast; 0: not needed.
        transformer_engine, torchao: what casts cost.
    """

    product: str
    gathered: float
    kept: float
    weights: float
    transposed: float
    transformer_engine: Casts
    torchao: Casts


def _alike(size_bytes: float, launches: int) -> Casts:
    """Return casts that cost the same for every operand; weights once."""
    return Casts(size_bytes, size_bytes, size_bytes, size_bytes, 0.0, launches)


BOTH_LAYOUTS = READ + 2 * FP8
TORCHAO_TENSORS = Casts(BOTH_LAYOUTS, BOTH_LAYOUTS, BOTH_LAYOUTS, READ + READ + FP8, READ + FP8, 3)

DELAYED = Recipe(
    product="fp8",
    gathered=FP8,
    kept=FP8,
    weights=2 * FP8,
    transposed=2 * FP8,
    # A norm writes one byte instead of two; the copy is transposed from 8 bits.
    transformer_engine=_alike(BOTH_LAYOUTS, 1)._replace(normalized=2 * FP8 - (READ - FP8), grouped=True),
    torchao=TORCHAO_TENSORS,
)
TENSORWISE = DELAYED._replace(transformer_engine=_alike(READ + BOTH_LAYOUTS, 3))
ROWS = FP8 + READ + READ + FP8  # a cast, a transposed copy in 16 bits, and its cast, the first read fused
ROWWISE = DELAYED._replace(
    gathered=READ,
    transformer_engine=_alike(READ + BOTH_LAYOUTS, 3),
    torchao=Casts(ROWS, ROWS, ROWS, READ + FP8, READ + READ + READ + FP8, 2, rescaled=READ + READ),
)
BLOCKWISE = Recipe(
    product="fp8_block",
    gathered=BLOCKS,
    kept=BLOCKS,
    weights=2 * BLOCKS,
    transposed=0.0,
    transformer_engine=_alike(READ + 2 * BLOCKS, 1),
    torchao=_alike(READ + 2 * BLOCKS, 2)._replace(weight=READ + BLOCKS, weight_again=READ + BLOCKS),
)
MICROSCALED = Recipe(
    product="mxfp8",
    gathered=MXFP8,
    kept=MXFP8,
    weights=2 * MXFP8,
    transposed=0.0,
    transformer_engine=_alike(MXFP8_OVER_STREAM * (READ + 2 * MXFP8), 1),
    torchao=_alike(MXFP8_OVER_STREAM * (READ + 2 * MXFP8), 2)._replace(
        weight=MXFP8_OVER_STREAM * (READ + MXFP8), weight_again=MXFP8_OVER_STREAM * (READ + MXFP8)
    ),
)
TWO_CASTS = 2 * (READ + NVFP4)
FOUR_BITS = _alike(READ + TWO_CASTS, 3)._replace(gradient=READ + STOCHASTIC * TWO_CASTS, weight=READ + READ + 2 * NVFP4)
FOUR_BIT = Recipe(
    product="nvfp4",
    gathered=NVFP4,
    kept=NVFP4,
    weights=2 * NVFP4,
    transposed=0.0,
    transformer_engine=FOUR_BITS,
    torchao=FOUR_BITS,
)

# With one scale a tensor, where products take operands in any layout: weights have one. Casts of activations stay:
# those of tensors take 1.1 times as long on B300 as a stream that reads twice and writes both layouts (see above).
ONE_LAYOUT = {
    GemmRecipe.FP8_DELAYED: DELAYED._replace(weights=FP8, transposed=0.0),
    GemmRecipe.FP8_TENSORWISE: TENSORWISE._replace(weights=FP8, transposed=0.0),
}
RECIPES = {
    GemmRecipe.FP8_DELAYED: DELAYED,
    GemmRecipe.FP8_TENSORWISE: TENSORWISE,
    GemmRecipe.FP8_ROWWISE: ROWWISE,
    GemmRecipe.FP8_BLOCKWISE: BLOCKWISE,
    GemmRecipe.MXFP8: MICROSCALED,
    GemmRecipe.NVFP4: FOUR_BIT,
}
