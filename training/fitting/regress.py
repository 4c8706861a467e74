"""Regressor of one direction: physics × residual, fitted to samples and published as a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, floor

import numpy as np
from numpy.typing import NDArray

from fitting.curves import evaluate, split_residual
from fitting.physics import Physics, fit_physics
from fitting.residual import DIGITS, Residual, fit_residual, median_residual, rounded_up
from fitting.samples import Samples
from predictor.core.costs.regressors import Curve, DirectionModel, Interval

Vector = NDArray[np.float64]
HULL_STEPS = 1e6


def rounded(values: Sequence[float] | Vector) -> tuple[float, ...]:
    """Round to seven significant digits, as files hold them."""
    return tuple(float(f"{value:.{DIGITS}g}") for value in values)


@dataclass(frozen=True, slots=True)
class Fitted:
    """A fitted regressor, with numbers already rounded as they will be published."""

    physics: Physics
    residual: Residual
    feature_low: Vector
    feature_high: Vector
    hull_low: Vector
    hull_high: Vector
    ranges: dict[int, tuple[float, float]] = field(default_factory=dict)  # per part, of the first hull coordinate
    curves: dict[int, Curve] = field(default_factory=dict)  # per part

    def physics_us(self, samples: Samples) -> Vector:
        """Return the answers of physics alone, in microseconds."""
        return self.physics.predict(samples.terms)

    def us(self, samples: Samples) -> Vector:
        """Return the answers in microseconds."""
        features = np.clip(full_features(samples, self.physics), self.feature_low, self.feature_high)
        log_ratio = self.residual.predict(features) + evaluate(self.curves, samples.hull[:, 0], samples.part)
        return np.asarray(self.physics_us(samples) * np.exp(log_ratio))

    def distance(self, samples: Samples) -> Vector:
        """Return the distance of each row from the measured range, as the largest log ratio; 0 inside."""
        beyond = np.maximum(self.hull_low - samples.hull, samples.hull - self.hull_high).max(axis=1)
        for part, (low, high) in self.ranges.items():
            rows, size = samples.part == part, samples.hull[:, 0]
            beyond = np.where(rows, np.maximum(beyond, np.maximum(low - size, size - high)), beyond)
        return np.asarray(np.maximum(beyond, 0.0))

    def without_residual(self, samples: Samples) -> Fitted:
        """Return the same physics with only its median correction."""
        return replace(self, residual=median_residual(np.log(samples.us / self.physics_us(samples))), curves={})

    def publish(
        self,
        interval: Interval,
        intervals: Mapping[str, Interval],
        rows: int,
        topologies: Sequence[tuple[int, int]],
        parts: Sequence[str] = (),
    ) -> DirectionModel:
        """Return the model as a file holds it; ``parts`` are the names of the parts that have curves."""
        return DirectionModel(
            physics=tuple(self.physics.coefficients.tolist()),
            overlapped=self.physics.overlapped,
            hull_low=tuple(self.hull_low.tolist()),
            hull_high=tuple(self.hull_high.tolist()),
            feature_low=tuple(self.feature_low.tolist()),
            feature_high=tuple(self.feature_high.tolist()),
            baseline=self.residual.baseline,
            trees=tuple(self.residual.trees),
            topologies=tuple(topologies) or None,
            interval=interval,
            intervals=dict(intervals),
            origin="measured",
            rows=rows,
            curves={parts[number]: curve for number, curve in self.curves.items()} or None,
        )


def full_features(samples: Samples, physics: Physics) -> Vector:
    """Return the residual's features of all rows, as ``predictor.core.costs.features.residual_features`` of each."""
    parts = samples.terms * physics.coefficients
    total = parts.sum(axis=1, keepdims=True)
    return np.hstack([samples.features, parts / np.where(total > 0.0, total, 1.0)])


def _outwards(value: float, rounding: Callable[[float], int]) -> float:
    return rounding(value * HULL_STEPS) / HULL_STEPS


def part_ranges(samples: Samples) -> dict[int, tuple[float, float]]:
    """Return the range of the first hull coordinate that each part was measured in."""
    result = {}
    for part in np.unique(samples.part).tolist():
        sizes = samples.hull[samples.part == part, 0]
        result[part] = (_outwards(sizes.min(), floor), _outwards(sizes.max(), ceil))
    return result


def fit(samples: Samples, use_residual: bool = True) -> Fitted:
    """Fit physics, then the residual of log(time / physics), or only its median."""
    unrounded = fit_physics(samples.terms, samples.us, most_launch_us=samples.most_launch_us)
    physics = Physics(np.array(rounded(unrounded.coefficients)), unrounded.overlapped)
    features = full_features(samples, physics)
    log_ratio = np.log(samples.us / physics.predict(samples.terms))
    residual, curves = median_residual(log_ratio), dict[int, Curve]()
    if use_residual:
        residual = fit_residual(
            features, log_ratio, samples.is_one_device, samples.own_ranges, some_slowed=not samples.has_softmax
        )
    if use_residual and samples.own_ranges and samples.is_one_device:
        residual, curves = split_residual(residual, samples.hull[:, 0], log_ratio, samples.part)
    return Fitted(
        physics=physics,
        residual=residual,
        curves=curves,
        # Rounded outwards, so that every measured row is inside.
        feature_low=-np.array([rounded_up(-value) for value in features.min(axis=0)]),
        feature_high=np.array([rounded_up(value) for value in features.max(axis=0)]),
        hull_low=np.array([_outwards(value, floor) for value in samples.hull.min(axis=0)]),
        hull_high=np.array([_outwards(value, ceil) for value in samples.hull.max(axis=0)]),
        ranges=part_ranges(samples) if samples.own_ranges else {},
    )
