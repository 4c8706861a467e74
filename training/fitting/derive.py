"""Derive regressors without usable rows; their answers are analytic, with the interval of the method.

- A direction takes the regressor of the other direction on its own work, slowed by the median over shapes of the
  donor's ratio of time per work between the two directions.
- A regressor takes the donor's physics, its FLOP terms scaled by the peak FLOP/s and its byte terms by the memory
  bandwidth; the median of rows that are too few to fit sets its level.
- A reduce-scatter takes the all-gather: the same bytes, the other way round the ring.

The first two are repeated for every measured regressor of the same kind (matrix products or streams); the 90 %
quantile of their errors is the interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log

import numpy as np

from fitting.intervals import COVERAGE, upper_quantile
from fitting.pipeline import Example, Fit
from fitting.regress import rounded
from fitting.tables import operators_of
from predictor.core.costs.catalogue import catalogue
from predictor.core.costs.collectives import INTERFACE_TERM, SHARED_HOST_TERM, STANDS_IN_FOR
from predictor.core.costs.operator import BOTH, Direction, Operator, Shape
from predictor.core.costs.published import PublishedSystem
from predictor.core.costs.regressors import DirectionModel, DirectionRegressor, Interval
from predictor.core.costs.transfer import computes, measured_log_error, scaled_physics
from predictor.core.hardware.hardware import Gpu, System

Models = dict[tuple[str, Direction], DirectionModel]
FAR_LOG_DISTANCE = 0.7  # a factor of two beyond the measured sizes
FEWEST_EXAMPLES = 5  # shapes whose median scales a donor's regressor
NOT_FITTED = {"intervals": {}, "origin": "analytic", "rows": 0}


@dataclass(frozen=True, slots=True)
class Derived:
    """One direction of a regressor without usable rows, and the sentence on the card that says how it was derived."""

    regressor: str
    direction: Direction
    model: DirectionModel
    why: str


def _interval(errors: Sequence[float], operator: Operator) -> Interval:
    """Return the interval of the method's log errors; without any, that of a transfer between the measured GPUs."""
    half = round(upper_quantile(np.abs(errors), COVERAGE), 5) if errors else measured_log_error(operator)
    return Interval(inside=(-half, half), outside=half, outside_distance=FAR_LOG_DISTANCE)


def _amount(operator: Operator, shape: Shape, direction: Direction, sms: int) -> float:
    work = operator.work(shape, direction, sms)
    return work.flops or work.size_bytes


def _opposite(direction: Direction) -> Direction:
    return BOTH[1 - BOTH.index(direction)]


def slowdown(examples: tuple[Example, ...], direction: Direction, donor: PublishedSystem) -> float:
    """Return the donor's time per work in ``direction`` over that in the other direction: the median over shapes."""
    sms = int(donor.hardware.gpu.num_multiprocessors.value)
    ratios = []
    both = (direction, _opposite(direction))
    for example in examples:
        operator = catalogue()[example.operator]
        times = [donor.cost(operator, d, example.shape).us for d in both]
        amounts = [_amount(operator, example.shape, d, sms) for d in both]
        ratios.append(times[0] / times[1] * amounts[1] / amounts[0])
    return float(np.median(ratios))


def slowed(model: DirectionModel, factor: float, interval: Interval | None = None) -> DirectionModel:
    """Return the model with all device terms ``factor`` times slower; launching takes as long as before."""
    physics = (model.physics[0], *rounded([c * factor for c in model.physics[1:]]))
    return model.model_copy(update={**NOT_FITTED, "physics": physics, "interval": interval or model.interval})


def rescaled(model: DirectionModel, operator: Operator, donor: Gpu, own: Gpu, precision: str) -> DirectionModel:
    """Return the physics of a model on another GPU: each term scaled by the ratio of the peaks that bound it."""
    physics = scaled_physics(model.physics, operator, donor, own, precision)
    return model.model_copy(update={**NOT_FITTED, "physics": physics, "baseline": 0.0, "trees": ()})


def _log_errors(
    model: DirectionModel, examples: tuple[Example, ...], direction: Direction, system: System, regressor: str
) -> list[float]:
    members = tuple(operator.name for operator in operators_of(regressor))
    answer = DirectionRegressor(model, members, int(system.gpu.num_multiprocessors.value)).answer
    return [log(e.us / answer(catalogue()[e.operator], direction, e.shape).us) for e in examples]


@dataclass(frozen=True, slots=True)
class Deriver:
    """Derives the operators of one system from its own fits and a donor."""

    system: System
    fits: dict[tuple[str, Direction], Fit]
    donor: PublishedSystem

    def _donated(self, name: str) -> dict[Direction, DirectionModel]:
        """Return the donor's models of a regressor; none where it has no file."""
        return {d: regressor.model for d, regressor in self.donor.files.read(operators_of(name)[0]).items()}

    def _pairs(self, like: Operator) -> list[tuple[Fit, Fit]]:
        """Return (forward, backward) of the operators of a kind that both systems measured in both directions."""
        result = []
        for (name, direction), forward in self.fits.items():
            backward = self.fits.get((name, Direction.BACKWARD))
            if direction is not Direction.FORWARD or computes(operators_of(name)[0]) != computes(like):
                continue
            donated = self._donated(name)
            measured = Direction.BACKWARD in donated and all(model.origin == "measured" for model in donated.values())
            if measured and forward.model and backward is not None and backward.model:
                result.append((forward, backward))
        return result

    def direction(self, name: str, direction: Direction) -> Derived | None:
        """Derive a direction from the other direction of the same regressor."""
        other, operator = _opposite(direction), operators_of(name)[0]
        known = self.fits.get((name, other))
        if known is None or known.model is None or not self._donated(name):
            return None
        errors: list[float] = []
        for pair in self._pairs(operator):
            have, want = pair if other is Direction.FORWARD else pair[::-1]
            assert have.model is not None
            model = slowed(have.model, slowdown(have.examples, direction, self.donor))
            errors += _log_errors(model, want.examples, direction, self.system, want.regressor)
        factor = slowdown(known.examples, direction, self.donor)
        why = (
            f"no usable row: the {other} regressor on the {direction} work, {factor:.3f} times slower per work, "
            f"a ratio measured on {self.donor.name}"
        )
        return Derived(name, direction, slowed(known.model, factor, _interval(errors, operator)), why)

    def regressor(self, name: str) -> list[Derived]:
        """Derive a whole regressor from the donor's physics; nothing where the donor has none."""
        operator = operators_of(name)[0]
        errors: list[float] = []
        for (measured, direction), fit in self.fits.items():
            like = operators_of(measured)[0]
            donated = self._donated(measured).get(direction)
            if computes(like) == computes(operator) and fit.model and donated:
                errors += _log_errors(self._rescaled(donated, like), fit.examples, direction, self.system, measured)
        interval = {"interval": _interval(errors, operator)}
        return [
            self._levelled(self._rescaled(model, operator).model_copy(update=interval), name, direction)
            for direction, model in self._donated(name).items()
        ]

    def _rescaled(self, model: DirectionModel, operator: Operator) -> DirectionModel:
        return rescaled(model, operator, self.donor.hardware.gpu, self.system.gpu, self.donor.precision)

    def _levelled(self, model: DirectionModel, name: str, direction: Direction) -> Derived:
        """Scale a donor's model to the median of this system's few rows, where there are any."""
        scaled = f"the physics of {self.donor.name}, scaled by the ratio of the GPUs' peaks"
        fit = self.fits.get((name, direction))
        if fit is None or len(fit.examples) < FEWEST_EXAMPLES:
            return Derived(name, direction, model, f"no usable row: {scaled}")
        level = float(np.median(_log_errors(model, fit.examples, direction, self.system, name)))
        why = f"too few rows to fit: {scaled}, then by {np.exp(level):.3f}, the median of {len(fit.examples)} shapes"
        return Derived(name, direction, model.model_copy(update={"baseline": round(level, 6)}), why)


def derive_collectives(models: Models) -> list[Derived]:
    """Return the collectives that are not measured and take another collective's regressor."""
    forward = Direction.FORWARD
    return [
        Derived(
            name,
            forward,
            models[twin, forward].model_copy(update={"origin": "analytic", "rows": 0}),
            f"not measured: the regressor of {twin}, which moves the same bytes the other way round the ring",
        )
        for name, twin in STANDS_IN_FOR.items()
        if (name, forward) not in models and (twin, forward) in models
    ]


def with_shared_host(models: Models) -> Models:
    """Return the collectives' models, a message's time per byte split between network interface and host.

    Messages were measured from a single GPU per node, where the two terms are the same. All-reduce was measured on one
    to four GPUs per node and has a term of the bytes that all GPUs of a node send: that is the host's share.
    """
    key, teacher = ("point_to_point", Direction.FORWARD), ("all_reduce", Direction.FORWARD)
    if key not in models or teacher not in models:
        return models
    message = models[key]
    if any(nodes > 1 and gpus > 1 for nodes, gpus in message.topologies or ()):
        return models
    physics = list(message.physics)
    both = physics[INTERFACE_TERM] + physics[SHARED_HOST_TERM]
    physics[SHARED_HOST_TERM] = min(models[teacher].physics[SHARED_HOST_TERM], both)
    physics[INTERFACE_TERM] = both - physics[SHARED_HOST_TERM]
    return {**models, key: message.model_copy(update={"physics": rounded(physics)})}


def derive_operators(fits: list[Fit], system: System, donor: PublishedSystem) -> list[Derived]:
    """Return the operators without usable rows that the donor can answer for."""
    measured = {operator.regressor_name for operator in catalogue().values()}  # not of one implementation of attention
    own = {(f.regressor, f.direction): f for f in fits if f.regressor in measured}
    deriver = Deriver(system, own, donor)
    derived: list[Derived] = []
    for name in sorted(measured):
        directions = operators_of(name)[0].directions
        absent = [d for d in directions if (name, d) not in own or own[name, d].model is None]
        if len(absent) == len(directions):
            derived += deriver.regressor(name)
        else:
            derived += filter(None, (deriver.direction(name, direction) for direction in absent))
    return derived
