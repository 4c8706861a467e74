"""Transfer regressors to hardware that was not measured.

Every physics term keeps its fitted efficiency: FLOPs scale by the ratio of the peaks, bytes by the ratio of the memory
bandwidths, launches and counts not at all; wave-quantised FLOPs are counted on the new number of multiprocessors. The
residual is the donor's. A changed number of one GPU and another GPU's data sheet are treated alike.

The error was measured between the two published GPUs (``python -m fitting transfer-error``) and widens every interval.
Derivation and tables: docs/adr/0013-transfer.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import hypot, log

from predictor.core.costs.cost import Cost
from predictor.core.costs.folder import RegressorFiles
from predictor.core.costs.operator import Direction, Operator, Shape
from predictor.core.costs.regressors import Basis, DirectionModel, DirectionRegressor, Interval, Outside, Regressor
from predictor.core.costs.transfer_errors import transfer_errors
from predictor.core.hardware.hardware import Gpu, System
from predictor.core.hardware.power import clock_log_error, clock_ratio

DIGITS = 7


def rounded(value: float) -> float:
    """Round to the digits of published files."""
    return float(f"{value:.{DIGITS}g}")


def computes(operator: Operator) -> bool:
    """Return whether an operator consists of matrix products, rather than of streamed bytes."""
    return "flops" in operator.extra_kinds


def ratios(donor: Gpu, own: Gpu, precision: str) -> dict[str, float]:
    """Return the factor of a term of each kind from ``donor`` to ``own``; above 1 where ``own`` is slower."""
    return {
        "count": 1.0,
        "flops": donor.peak_tflop_per_s[precision].value
        * clock_ratio(donor)
        / (own.peak_tflop_per_s[precision].value * clock_ratio(own)),
        "bytes": donor.memory_bandwidth_gb_per_s.value / own.memory_bandwidth_gb_per_s.value,
    }


def scaled_physics(
    physics: tuple[float, ...], operator: Operator, donor: Gpu, own: Gpu, precision: str
) -> tuple[float, ...]:
    """Return a model's microseconds per term on another GPU."""
    scale = ratios(donor, own, precision)
    kinds = ("count", "flops", "bytes", *operator.extra_kinds)
    return tuple(rounded(c * scale[kind]) for c, kind in zip(physics, kinds, strict=True))


def measured_log_error(operator: Operator) -> float:
    """Return the error of an operator transferred between the two measured GPUs, as a log."""
    errors = transfer_errors()
    kind = "compute" if computes(operator) else "stream"
    return max(errors.kinds[kind], errors.regressors.get(operator.regressor_name, 0.0))


def log_error(operator: Operator, donor: Gpu, own: Gpu, precision: str) -> float:
    """Return the error of a transferred operator as a log: the measured error, in proportion to the change of hardware.

    Only for a changed number of the same chip may it be smaller than the measured error.
    """
    scale = ratios(donor, own, precision)
    kinds = ("flops", "bytes") if computes(operator) else ("bytes",)
    farthest = max(abs(log(scale[kind])) / transfer_errors().distance[kind] for kind in kinds)
    share: float = farthest if donor.chip == own.chip else max(1.0, farthest)
    of_clock = clock_log_error(own) if computes(operator) else 0.0
    return hypot(share * measured_log_error(operator), of_clock)


def widened(interval: Interval, error: float) -> Interval:
    """Return an interval with an independent error added."""
    return interval.model_copy(update={"transfer_error": hypot(interval.transfer_error, error)})


def transferred(model: DirectionModel, physics: tuple[float, ...], error: float, basis: Basis) -> DirectionModel:
    """Return a model with other physics, its own residual and a wider interval, marked analytic."""
    return model.model_copy(
        update={
            "physics": physics,
            "basis": model.basis or basis,
            "interval": widened(model.interval, error),
            "intervals": {name: widened(interval, error) for name, interval in model.intervals.items()},
            "unseen_in_node": model.unseen_in_node and widened(model.unseen_in_node, error),
            "origin": "analytic",
        }
    )


def transfer(
    regressor: DirectionRegressor, operator: Operator, donor: Gpu, own: Gpu, precision: str
) -> DirectionRegressor:
    """Return an operator's regressor on another GPU, unchanged where the hardware that it depends on is the same.

    Between different chips the residual's trees are dropped: they encode which kernels the donor's libraries pick for a
    shape, and increased the error on the other chip. The constant part stays.
    """
    model = regressor.model
    physics = scaled_physics(model.physics, operator, donor, own, precision)
    chips = [int(gpu.num_multiprocessors.value) for gpu in (donor, own)]
    if physics == tuple(rounded(c) for c in model.physics) and (chips[0] == chips[1] or not computes(operator)):
        return regressor
    if chips[0] != chips[1]:
        model = model.model_copy(update={"trees": ()})
    basis = Basis(physics=regressor.model.physics, num_multiprocessors=chips[0])
    error = log_error(operator, donor, own, precision)
    return DirectionRegressor(transferred(model, physics, error, basis), regressor.members, chips[1])


@dataclass(frozen=True, slots=True)
class ByReach:
    """A collective with one regressor inside a node and another between nodes."""

    inside: Regressor
    between: Regressor

    def _of(self, shape: Shape) -> Regressor:
        return self.inside if shape[1] == 1 else self.between

    def answer(self, operator: Operator, direction: Direction, shape: Shape) -> Cost:
        """Return the cost of one call."""
        return self._of(shape).answer(operator, direction, shape)

    def outside(self, operator: Operator, direction: Direction, shape: Shape) -> Outside | None:
        """Return how far outside what was measured a call lies; None inside."""
        return self._of(shape).outside(operator, direction, shape)

    def widest(self, operator: Operator, shape: Shape) -> float:
        """Return the half width of an operator's interval outside what was measured, as a log."""
        return self._of(shape).widest(operator, shape)


def _relinked(regressor: DirectionRegressor, ratio: float) -> DirectionRegressor:
    """Return a collective's regressor over links ``ratio`` times as slow; latency steps and the shared host stay."""
    if ratio == 1.0:
        return regressor
    model = regressor.model
    launch, flops, sent, pair, interface, *rest = model.physics
    physics = (launch, flops, *(rounded(c * ratio) for c in (sent, pair, interface)), *rest)
    share = min(1.0, abs(log(ratio)) / log(2.0))  # beyond a factor of two the error grows no further
    basis = Basis(physics=model.physics, num_multiprocessors=1)
    error = share * transfer_errors().collectives["alike"]
    return DirectionRegressor(transferred(model, physics, error, basis), regressor.members, 1)


def relinked(regressor: DirectionRegressor, measured: System, own: System) -> Regressor:
    """Return a collective's regressor where links inside a node or between nodes are faster or slower than measured."""
    inside = measured.pair_gb_per_s / own.pair_gb_per_s
    between = measured.links.inter_node_gb_per_s.value / own.links.inter_node_gb_per_s.value
    if inside == between == 1.0:
        return regressor
    return ByReach(_relinked(regressor, inside), _relinked(regressor, between))


def of_files(
    files: RegressorFiles, own: Gpu, precision: str, operator: Operator, kernel: str = ""
) -> dict[Direction, Regressor]:
    """Return the regressors of an operator's tables on a GPU; those of its precision have the peak of the tables'.

    ``kernel``: see ``RegressorFiles.read``.
    """
    gpu = files.hardware.gpu
    peaks = gpu.peak_tflop_per_s
    donor = gpu.model_copy(update={"peak_tflop_per_s": {**peaks, precision: peaks[files.precision]}})
    measured = files.read(operator, kernel)
    return {way: transfer(regressor, operator, donor, own, precision) for way, regressor in measured.items()}
