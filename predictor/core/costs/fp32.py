"""A system that was measured in 16 bits alone, in fp32.

Every physics term keeps its fitted efficiency, as in ``transfer``: matrix products scale by the ratio of the data
sheet's peaks, bytes of elements double, launches and counts stay. No published GPU was measured in both precisions, so
an interval widens by the error of the transfer between the two measured GPUs, in proportion to the change.
"""

from __future__ import annotations

from math import log
from pathlib import Path

from predictor.core.base.errors import PublishedError
from predictor.core.costs.attention_kernels import AttentionRegressor
from predictor.core.costs.gradient_products import each
from predictor.core.costs.operator import Direction, Operator, Shape
from predictor.core.costs.published import PublishedSystem
from predictor.core.costs.regressors import Basis, DirectionRegressor, Regressor
from predictor.core.costs.stand_ins import Call
from predictor.core.costs.transfer import computes, measured_log_error, rounded, transferred
from predictor.core.costs.transfer_errors import transfer_errors
from predictor.core.costs.work import ELEMENT_BYTES, PRECISION_BYTES
from predictor.core.hardware.device_sheets import known_peaks
from predictor.core.hardware.hardware import Gpu

FP32_PER_16_BITS = PRECISION_BYTES["fp32"] / ELEMENT_BYTES


def peak_ratio(gpu: Gpu, precision: str, tf32: bool) -> float:
    """Return the 16-bit matrix peak of a GPU over its peak in fp32, or in TF32 where it has that.

    Raises:
        PublishedError: no data sheet of this GPU says the peak.
    """
    known = known_peaks(gpu)
    name = "tf32" if tf32 and "tf32" in known else "fp32"
    if name not in known:
        raise PublishedError(f"{gpu.name} was measured in {precision} alone, and no data sheet says its {name} peak")
    return known[precision] / known[name]


class Fp32System(PublishedSystem):
    """A published system whose 16-bit regressors answer for fp32; ``precision`` names theirs.

    ``tf32`` says whether products run in TF32: as asked, on a GPU that has it.
    """

    def __init__(self, folder: Path, precision: str, tf32: bool) -> None:
        """Open a published folder in one of its 16-bit precisions.

        Raises:
            FileNotFoundError, PublishedError: as ``PublishedSystem``, or the GPU's peak is not known.
        """
        self._asked_for_tf32 = tf32
        super().__init__(folder, precision)
        self.tf32 = tf32 and "tf32" in known_peaks(self.hardware.gpu)
        self._flops = peak_ratio(self.hardware.gpu, precision, tf32)

    def opened_alike(self, folder: Path) -> PublishedSystem:
        """Return another published folder in fp32."""
        return Fp32System(folder, self.precision, self._asked_for_tf32)

    @property
    def answered_precision(self) -> str:
        """Return the precision of the elements that costs are of."""
        return "fp32"

    def _peak_tflop_per_s(self) -> float | None:
        """Return the data sheet's peak of matrix products in fp32 or TF32."""
        peak = super()._peak_tflop_per_s()
        return None if peak is None else peak / self._flops

    def _operator(self, operator: Operator) -> dict[Direction, Regressor]:
        measured = super()._operator(operator)
        return {
            direction: each(regressor, lambda part: self._in_fp32(part, operator))
            for direction, regressor in measured.items()
        }

    def _call(self, operator: Operator, direction: Direction, shape: Shape) -> Call:
        """Return a call; a donor operator that counts bytes which fp32 does not change runs as in 16 bits."""
        call = super()._call(operator, direction, shape)
        if not call.stands_in or operator.byte_sizes != "fixed":
            return call
        name = f"{call.operator.regressor_name} in 16 bits"
        if name not in self._regressors:
            self._regressors[name] = super()._operator(call.operator)
        return call._replace(regressor=self._regressors[name][direction])

    def _in_fp32(self, regressor: Regressor, operator: Operator) -> Regressor:
        """Return a regressor with its terms scaled; unchanged where its bytes are the same in every precision."""
        if isinstance(regressor, AttentionRegressor):
            return regressor.changed(lambda part: self._in_fp32(part, operator))
        if not isinstance(regressor, DirectionRegressor):  # a copy from the host, by its bytes
            return regressor
        product = computes(operator)
        scale = {
            "count": 1.0,
            "flops": self._flops if product else 1.0,
            "bytes": FP32_PER_16_BITS if operator.byte_sizes == "by_element" else 1.0,
        }
        kinds = ("count", "flops", "bytes", *operator.extra_kinds)
        model = regressor.model
        physics = tuple(rounded(c * scale[kind]) for c, kind in zip(model.physics, kinds, strict=True))
        if physics == tuple(map(rounded, model.physics)):
            return regressor
        kind = "flops" if product else "bytes"
        share = max(1.0, abs(log(scale[kind])) / transfer_errors().distance[kind])
        sms = int(self.hardware.gpu.num_multiprocessors.value)
        basis = Basis(physics=model.physics, num_multiprocessors=sms)
        error = share * measured_log_error(operator)
        return DirectionRegressor(transferred(model, physics, error, basis), regressor.members, sms)
