"""Matrix products in fewer bits than the rest of a step.

Products that were measured forward and backward are answered as measured. Tables of an inference engine have no
backward pass, time the cast of the first operand along, and in 8 bits hold other kernels (CUTLASS, DeepGEMM) than
training runs (cuBLASLt, which the tables time in 16 bits): 8-bit products then follow from the step's precision as in
``fp32``. Every physics term keeps its efficiency, FLOPs scale by the ratio of the peaks. Without the cast the tables
agree: bf16 takes 1.9 to 2.0 times as long on five of six GPUs. In 4 bits products reach a smaller share of the peak, so
the table's are taken, without their casts. Derivation and tables: docs/adr/0030-low-precision.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import log

from predictor.base.errors import PublishedError
from predictor.costs.cost import Cost, Source
from predictor.costs.device_sheets import sheet_named
from predictor.costs.gradient_products import GradientProducts
from predictor.costs.hardware import Gpu
from predictor.costs.operator import Direction, Operator, Shape
from predictor.costs.regressors import Basis, DirectionRegressor, Outside, Regressor
from predictor.costs.transfer import measured_log_error, rounded, transferred
from predictor.costs.transfer_errors import transfer_errors
from predictor.costs.work import PRECISION_BYTES

# Where a precision was not measured, the one whose products run on the same tensor cores at the same rate: Blackwell
# applies the scales of blocks of 32 in hardware, and Transformer Engine computes its 128 x 128 blocks with those.
# Source: NVIDIA, Transformer Engine user guide, "FP8 block scaling" and "MXFP8"; PTX ISA, tcgen05.mma.
SAME_TENSOR_CORES = {"mxfp8": ("fp8",), "fp8_block": ("fp8",)}
# Picoseconds per element that a table's calls spend on casting their first operand (m, k). The median, over (m, k) with
# m >= 4,096 and k >= 2,048, of what a call's time extrapolates to without columns (n from 2,048 to 16,384), over
# m x k: 0.75, 0.69, 0.63 and 0.74 on B200, B300, GB200, GB300. In bf16, where nothing is cast, it is -0.3 to 0.2; in
# fp8 2.6 to 2.8 on all GPUs. Source: the tables of github.com/ai-dynamo/aiconfigurator at 095f58a, whose collector
# (collector/vllm/collect_gemm.py) times the whole layer of vLLM.
OPERAND_CAST_PS = {"nvfp4": 0.7}
OPERANDS = 2.0  # of a product, in few bits; its result has 16
MATRICES = 3.0
SIXTEEN_BITS = 2.0  # bytes


def peak_tflop_per_s(gpu: Gpu, precision: str) -> float:
    """Return a GPU's dense peak in a precision, of its own file or of a data sheet.

    Raises:
        PublishedError: neither says it.
    """
    sheet = sheet_named(gpu.name)
    stated = {key: peak.value for key, peak in gpu.peak_tflop_per_s.items()}
    known = {**(sheet.peak_tflop_per_s if sheet is not None else {}), **stated}
    for name in (precision, *SAME_TENSOR_CORES.get(precision, ())):
        if name in known:
            return known[name]
    raise PublishedError(
        f"{gpu.name} has no {precision} peak in its system.yaml, nor in a data sheet; it has {', '.join(known)}"
    )


def scaled(regressor: Regressor, operator: Operator, gpu: Gpu, measured: str, precision: str) -> Regressor:
    """Return a product's regressor in a precision that was not measured, from that of a measured one; analytic."""
    if not isinstance(regressor, DirectionRegressor):
        return regressor
    flops = peak_tflop_per_s(gpu, measured) / peak_tflop_per_s(gpu, precision)
    moved = (OPERANDS * PRECISION_BYTES[precision] / SIXTEEN_BITS + MATRICES - OPERANDS) / MATRICES
    scale = {"count": 1.0, "flops": flops, "bytes": moved}
    model = regressor.model
    kinds = ("count", "flops", "bytes", *operator.extra_kinds)
    physics = tuple(rounded(c * scale[kind]) for c, kind in zip(model.physics, kinds, strict=True))
    sms = int(gpu.num_multiprocessors.value)
    share = abs(log(flops)) / transfer_errors().distance["flops"]
    basis = Basis(physics=model.physics, num_multiprocessors=sms)
    changed = transferred(model, physics, share * measured_log_error(operator), basis)
    return DirectionRegressor(changed, regressor.members, sms)


@dataclass(frozen=True, slots=True)
class Product:
    """The regressor of one direction of products in few bits.

    Attributes:
        regressor: of the precision that was measured.
        cast_ps: picoseconds per element of the first operand that the measured calls cast; 0: none.
        least_us_per_flop: at the peak, which nothing beats.
        is_own: measured in this precision, and not in one that runs on the same tensor cores.
    """

    regressor: Regressor
    cast_ps: float
    least_us_per_flop: float
    is_own: bool

    def answer(self, operator: Operator, direction: Direction, shape: Shape) -> Cost:
        """Return the cost of the products alone: backward those of the data's and of the weights' gradient."""
        cost = self.regressor.answer(operator, direction, shape)
        source = cost.source if self.is_own else max(cost.source, Source.EXTRAPOLATED)
        m, k, n = shape
        elements = m * k if direction is Direction.FORWARD else m * n + k * m
        least = 2.0 * m * k * n * (1 if direction is Direction.FORWARD else 2) * self.least_us_per_flop
        us = max(cost.us - elements * self.cast_ps * 1e-6, min(least, cost.us))
        share = us / cost.us if cost.us else 1.0
        return Cost(us, cost.low_us * share, cost.high_us * share, source)

    def outside(self, operator: Operator, direction: Direction, shape: Shape) -> Outside | None:
        """Return how far outside what was measured a call lies; None inside."""
        return self.regressor.outside(operator, direction, shape)

    def widest(self, operator: Operator, shape: Shape) -> float:
        """Return the half width of an operator's interval outside what was measured, as a log."""
        return self.regressor.widest(operator, shape)


def of_inference(measured: dict[Direction, Regressor]) -> bool:
    """Return whether products were measured forward only, as by an inference engine's tables."""
    return isinstance(measured.get(Direction.BACKWARD), GradientProducts)


def answers(measured: dict[Direction, Regressor], precision: str) -> bool:
    """Return whether measured products of a precision stand for those of training."""
    return bool(measured) and (precision in OPERAND_CAST_PS or not of_inference(measured))


def products(
    measured: dict[Direction, Regressor], gpu: Gpu, wanted: str, precision: str, operator: Operator, step: str
) -> dict[Direction, Regressor]:
    """Return the regressors of products in a wanted precision.

    Args:
        measured: regressors of the operator in ``precision``.
        gpu: of the run.
        wanted: precision of the products.
        precision: that was measured: the wanted one, one on the same tensor cores, or the step's.
        operator: the linear layer.
        step: the step's precision, whose products have no cast, and are scaled.
    """
    plain = replace(operator, computed_in="")
    if precision == step:
        return {d: scaled(regressor, plain, gpu, step, wanted) for d, regressor in measured.items()}
    cast_ps = OPERAND_CAST_PS.get(precision, 0.0) if of_inference(measured) else 0.0
    least = 1.0 / (peak_tflop_per_s(gpu, wanted) * 1e6)
    return {d: Product(regressor, cast_ps, least, precision == wanted) for d, regressor in measured.items()}
