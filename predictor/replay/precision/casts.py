"""Casts between precisions: fitted to measurements, or by the bytes that they move."""

from __future__ import annotations

from collections.abc import Sequence

from predictor.core.base.errors import ConfigError
from predictor.core.costs.cost import ZERO, Cost, Source
from predictor.replay.precision.measured_costs import CastSample, MeasuredCast, MeasuredCosts
from predictor.replay.precision.operator_graph import Precision

ANALYTIC_SPREAD = 2.0  # a cast by bytes may be half or twice as long; assumed, not measured
ROUNDING_PASSES = {Precision.INT8: 1, Precision.FP8: 1}  # further reads of the tensor, for its largest value


def fit_cast(cast_from: Precision, cast_to: Precision, samples: Sequence[CastSample]) -> MeasuredCast:
    """Fit ``alpha · numel + beta`` with both not negative to the median times of tensors of several sizes.

    Squares of relative errors are summed, so that a tensor of ten elements counts as much as one of ten million.

    Raises:
        ConfigError: there are fewer than two sizes.
    """
    if len({sample.numel for sample in samples}) < 2:
        raise ConfigError(
            f"cast from {cast_from} to {cast_to} was measured with {len(samples)} samples; two sizes are needed"
        )
    usable = [sample for sample in samples if sample.us > 0.0]
    if not usable:
        raise ConfigError(f"cast from {cast_from} to {cast_to}: every sample takes no time; measure larger tensors")
    alpha, beta = _weighted_line(usable)
    errors = [abs((alpha * sample.numel + beta) / sample.us - 1.0) for sample in usable]
    return MeasuredCast(
        cast_from=cast_from,
        cast_to=cast_to,
        alpha_us_per_element=alpha,
        beta_us=beta,
        relative_error=max(errors),
        samples=tuple(samples),
    )


def _weighted_line(samples: Sequence[CastSample]) -> tuple[float, float]:
    """Return slope and intercept ≥ 0 with the least Σ((alpha·n + beta)/t − 1)², on a bound if need be."""
    xs = [sample.numel / sample.us for sample in samples]
    ys = [1.0 / sample.us for sample in samples]
    xx, xy, yy = (sum(a * b for a, b in zip(*pair, strict=True)) for pair in ((xs, xs), (xs, ys), (ys, ys)))
    sum_x, sum_y = sum(xs), sum(ys)
    determinant = xx * yy - xy * xy
    if determinant > 1e-12 * xx * yy:
        alpha = (sum_x * yy - sum_y * xy) / determinant
        beta = (sum_y * xx - sum_x * xy) / determinant
        if alpha >= 0.0 and beta >= 0.0:
            return alpha, beta
    through_zero, flat = (sum_x / xx, 0.0), (0.0, sum_y / yy)

    def squares(line: tuple[float, float]) -> float:
        return sum((line[0] * x + line[1] * y - 1.0) ** 2 for x, y in zip(xs, ys, strict=True))

    return min(through_zero, flat, key=squares)


class CastCosts:
    """Costs of casts on one device."""

    def __init__(self, measured: MeasuredCosts | None = None, bandwidth_gb_per_s: float | None = None) -> None:
        """Take fitted casts from a table; the others are by bytes over the memory's bandwidth, where that is known."""
        casts = measured.casts if measured is not None else ()
        self._fitted = {(cast.cast_from, cast.cast_to): cast for cast in casts}
        self._bandwidth = bandwidth_gb_per_s

    def cost(self, cast_from: Precision, cast_to: Precision, numel: int) -> Cost:
        """Return the cost of casting a tensor; ZERO between precisions of the same tensors.

        Raises:
            ConfigError: the pair was not measured, and no bandwidth is known.
        """
        pair = _as_tensor(cast_from), _as_tensor(cast_to)
        if pair[0] is pair[1] or numel == 0:
            return ZERO
        cast = self._fitted.get(pair)
        if cast is not None:
            us, error = cast.us(numel), min(cast.relative_error, 0.9)
            sizes = [sample.numel for sample in cast.samples]
            inside = not sizes or min(sizes) <= numel <= max(sizes)
            source = Source.INTERPOLATED if inside else Source.EXTRAPOLATED
            return Cost(us, us * (1.0 - error), us * (1.0 + error), source)
        if self._bandwidth is None:
            raise ConfigError(
                f"cast from {cast_from} to {cast_to} was not measured, and the memory's bandwidth is not known; "
                "measure it with python -m microbench casts, or give the device's data sheet"
            )
        size_bytes = numel * (pair[0].bytes * (1 + ROUNDING_PASSES.get(pair[1], 0)) + pair[1].bytes)
        us = size_bytes / (self._bandwidth * 1e3)
        return Cost(us, us / ANALYTIC_SPREAD, us * ANALYTIC_SPREAD, Source.ANALYTIC)


def _as_tensor(precision: Precision) -> Precision:
    return Precision.FP32 if precision is Precision.TF32 else precision
