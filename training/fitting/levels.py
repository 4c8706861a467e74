"""Attention with too few rows for a fit of its own: related physics, at the level of these rows.

Fused attention in all its forms runs the same two or five products, counted by the same terms. So a form or a direction
of few rows takes the microseconds per term that the kernel's other rows were fitted to, times the median over its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fitting.derive import FAR_LOG_DISTANCE, FEWEST_EXAMPLES, Derived
from fitting.intervals import COVERAGE, upper_quantile
from fitting.physics import Physics, terms_matrix
from fitting.pipeline import Fit
from fitting.regress import Fitted, full_features
from fitting.residual import Residual
from fitting.samples import to_samples
from fitting.tables import Row, operators_of
from predictor.core.costs.catalogue import catalogue
from predictor.core.costs.operator import BOTH, Direction
from predictor.core.costs.regressors import DirectionModel, Interval
from predictor.core.hardware.hardware import System

GROUPED = "grouped_query_attention"  # multi-head attention is its case of as many key-value heads


def _teacher(fits: dict[tuple[str, Direction], Fit], name: str, direction: Direction) -> tuple[str, Direction] | None:
    """Return the fitted form and direction that is closest: the form before the direction."""
    other = BOTH[1 - BOTH.index(direction)]
    nearest = [(GROUPED, direction), (name, other), (GROUPED, other)]
    return next((key for key in nearest if key in fits and fits[key].model is not None), None)


def _levelled(fit: Fit, physics: DirectionModel, system: System) -> tuple[DirectionModel, float]:
    """Return the model of a direction's few rows on given physics, and the factor on it."""
    operator = operators_of(fit.regressor)[0]
    rows = [Row(catalogue()[e.operator], "", fit.direction, e.shape, e.us) for e in fit.examples]
    sms = int(system.gpu.num_multiprocessors.value)
    samples = to_samples(rows, sms, [operator.name])
    known = Physics(np.array(physics.physics), physics.overlapped)
    log_ratio = np.log(samples.us / known.predict(terms_matrix(rows, sms)))
    level = float(np.median(log_ratio))
    features = full_features(samples, known)
    fitted = Fitted(
        known, Residual(round(level, 6), []), features.min(axis=0), features.max(axis=0), samples.hull.min(axis=0),
        samples.hull.max(axis=0),
    )  # fmt: skip
    low, high = physics.interval.inside
    half = max(upper_quantile(np.abs(log_ratio - level), COVERAGE), -low, high)
    outside = max(half, physics.interval.outside)
    interval = Interval(inside=(-half, half), outside=outside, outside_distance=FAR_LOG_DISTANCE)
    model = fitted.publish(interval, {}, len(rows), ())
    return model.model_copy(update={"origin": "analytic"}), float(np.exp(level))


def attention_levels(fits: Sequence[Fit], system: System) -> list[Derived]:
    """Return the forms and directions of attention that have rows, too few to fit."""
    by_key = {(fit.regressor, fit.direction): fit for fit in fits}
    result = []
    for (name, direction), fit in by_key.items():
        fused = name in catalogue() and catalogue()[name].fused_attention
        teacher = _teacher(by_key, name, direction) if fused else None
        if fit.model is not None or len(fit.examples) < FEWEST_EXAMPLES or teacher is None:
            continue
        physics = by_key[teacher].model
        assert physics is not None
        model, factor = _levelled(fit, physics, system)
        why = (
            f"too few rows to fit: the physics of {teacher[0]} {teacher[1]}, by {factor:.3f}, the median of "
            f"{len(fit.examples)} shapes"
        )
        result.append(Derived(name, direction, model, why))
    return result
