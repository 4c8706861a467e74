"""Matrix products in fewer bits than the rest of a step.

Products that were measured forward and backward are answered as measured. Tables of an inference engine have no
backward pass, time the cast of the first operand along, and hold other kernels (CUTLASS, DeepGEMM, FlashInfer) than
training runs (cuBLASLt, which the tables time in 16 bits). Products then follow from the step's precision: launches
stay, FLOPs are divided by how much faster the same library multiplies in few bits, which Transformer Engine's own
benchmark measures. What the inference tables say of it without their casts: docs/adr/0030-low-precision.md.
"""

from __future__ import annotations

from predictor.core.base.errors import PublishedError
from predictor.core.costs.gradient_products import GradientProducts, each
from predictor.core.costs.operator import Direction, Operator
from predictor.core.costs.regressors import Basis, DirectionRegressor, Regressor
from predictor.core.costs.transfer import rounded, transferred
from predictor.core.costs.work import ELEMENT_BYTES, PRECISION_BYTES
from predictor.core.hardware.device_sheets import known_peaks, sheet_named
from predictor.core.hardware.hardware import Gpu

# The precision whose peak a precision has where no data sheet says its own: Blackwell applies the scales of blocks of
# 32 in hardware, and Transformer Engine computes its 128 x 128 blocks with those; GPUs without TF32 multiply in fp32.
# Source: NVIDIA, Transformer Engine user guide, "FP8 block scaling" and "MXFP8"; PTX ISA, tcgen05.mma.
SAME_TENSOR_CORES = {"mxfp8": ("fp8",), "fp8_block": ("fp8",), "tf32": ("fp32",)}
# How much faster than in bf16 products alone run: all twelve of a layer of hidden size 4,096 with 15,872 tokens take
# 13.10 ms in bf16, 6.81 in fp8, 7.16 in mxfp8 and 3.76 in nvfp4 on B300; 31.97 and 16.79 in fp8 on H200. Blocks of 128
# x 128 run as mxfp8 on Blackwell; on Hopper as fast (DeepGEMM: 1,427 TFLOP/s of an H100 against 767 in bf16).
# Source: Transformer Engine, docs/examples/gemm_profiling/gemm_profiling.rst, "--pre-quantize".
SPEEDUP = {"fp8": 1.91, "fp8_block": 1.83, "mxfp8": 1.83, "nvfp4": 3.48}
# Half width of its 90 % interval, as a log. fp8 without casts over bf16 in the inference tables, of 10^11 to 10^12
# FLOP: 1.5, 1.7, 1.9, 1.8, 2.0 and 2.0 on six GPUs; nvfp4 2.6 to 2.8 on four, with another kernel.
SPEEDUP_LOG_ERROR = 0.15
OPERANDS = 2.0  # of a product, in few bits; its result has 16
MATRICES = 3.0


def transposes_fp8(gpu: Gpu) -> bool:
    """Return whether 8-bit products take operands in one layout only; not on data-centre Blackwell.

    Source: Transformer Engine, common/transformer_engine.cpp, nvte_is_non_tn_fp8_gemm_supported.
    """
    return gpu.matrix_instruction != "tcgen05"


def peak_tflop_per_s(gpu: Gpu, precision: str) -> float:
    """Return a GPU's dense peak in a precision, of its own file or of a data sheet.

    Raises:
        PublishedError: neither says it.
    """
    known = known_peaks(gpu)
    for name in (precision, *SAME_TENSOR_CORES.get(precision, ())):
        if name in known:
            return known[name]
    raise PublishedError(
        f"{gpu.name} has no {precision} peak in its system.yaml, nor in a data sheet; it has {', '.join(known)}"
    )


def speedup(gpu: Gpu, precision: str, direction: Direction) -> float:
    """Return how much faster than in 16 bits a GPU's products are.

    Hopper's tensor cores add fp8 products in fewer bits than fp32; frameworks let them forward, and not backward.
    Source: Transformer Engine, common/recipe/__init__.py, MMParams.use_split_accumulator; torchao/float8/config.py,
    use_fast_accum.
    """
    faster = SPEEDUP[precision]
    sheet = sheet_named(gpu.name)
    if precision != "fp8" or direction is not Direction.BACKWARD or sheet is None:
        return faster
    return faster / sheet.exact_sum_ratio


def scaled(regressor: Regressor, operator: Operator, gpu: Gpu, precision: str, direction: Direction) -> Regressor:
    """Return a product's regressor in a precision that was not measured, from that of the step's; analytic.

    Raises:
        PublishedError: the GPU has no tensor cores for it.
    """
    faster = speedup(gpu, precision, direction)
    return each(regressor, lambda part: _scaled(part, operator, gpu, precision, faster))


def _scaled(regressor: Regressor, operator: Operator, gpu: Gpu, precision: str, faster: float) -> Regressor:
    if not isinstance(regressor, DirectionRegressor):
        raise PublishedError(f"{operator.name} has no regressor from which {precision} could follow")
    peak_tflop_per_s(gpu, precision)
    moved = (OPERANDS * PRECISION_BYTES[precision] / ELEMENT_BYTES + MATRICES - OPERANDS) / MATRICES
    scale = {"count": 1.0, "flops": 1.0 / faster, "bytes": moved}
    model = regressor.model
    kinds = ("count", "flops", "bytes", *operator.extra_kinds)
    physics = tuple(rounded(c * scale[kind]) for c, kind in zip(model.physics, kinds, strict=True))
    sms = int(gpu.num_multiprocessors.value)
    basis = Basis(physics=model.physics, num_multiprocessors=sms)
    return DirectionRegressor(transferred(model, physics, SPEEDUP_LOG_ERROR, basis), regressor.members, sms)


def of_inference(measured: dict[Direction, Regressor]) -> bool:
    """Return whether products were measured forward only, as by an inference engine's tables."""
    return isinstance(measured.get(Direction.BACKWARD), GradientProducts)


def products(
    table: dict[Direction, Regressor],
    own: dict[Direction, Regressor],
    operator: Operator,
    gpu: Gpu,
    precision: str,
) -> dict[Direction, Regressor]:
    """Return the regressors of products in a precision: as measured with their backward pass, else from the step's.

    Args:
        table: measured in the precision; empty: none was.
        own: of the step's precision.
        operator: the linear layer.
        gpu: of the run.
        precision: of the products.
    """
    if table and not of_inference(table):
        return table
    return {direction: scaled(part, operator, gpu, precision, direction) for direction, part in own.items()}
