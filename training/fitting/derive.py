"""Derive regressors without usable rows; their answers are marked analytic, with the interval of the method.

- A direction takes the other direction's regressor on its own work, slowed by how much slower the donor system runs
  that
  direction: the median over shapes of its backward/forward time over the backward/forward work.
- A regressor takes the donor's physics, its FLOP terms scaled by the peak FLOP/s and its byte terms by the memory
  bandwidth; the median of rows that are too few to fit sets its level.
- A reduce-scatter takes the all-gather: the same bytes, the other way round the ring.

The first two are also done for every regressor of the same kind (matrix products, or streamed bytes) that *was*
measured; the 90 % quantile of their errors there is the interval.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log
from pathlib import Path

import numpy as np

from fitting.intervals import COVERAGE, upper_quantile
from fitting.pipeline import Example, Fit, operators_of
from fitting.regress import rounded
from predictor.costs.catalogue import catalogue
from predictor.costs.collectives import COLLECTIVES, INTERFACE_TERM, SHARED_HOST_TERM, STANDS_IN_FOR
from predictor.costs.hardware import Gpu, System
from predictor.costs.operator import BOTH, Direction, Operator, Shape
from predictor.costs.published import OPERATOR_FOLDER, REGRESSOR_FILE, PublishedSystem, read_manifest, read_verified
from predictor.costs.regressors import DirectionModel, DirectionRegressor, Interval, RegressorFile
from predictor.costs.transfer import measured_log_error, scaled_physics

MEASURED = "measured"
Models = dict[tuple[str, Direction], DirectionModel]
FAR_LOG_DISTANCE = 0.7  # a factor of two beyond the measured sizes
FEWEST_EXAMPLES = 5  # shapes whose median scales a donor's regressor


@dataclass(frozen=True, slots=True)
class Derived:
    """A regressor's direction that no row of this system supports, and the sentence that says where it comes from."""

    regressor: str
    direction: Direction
    model: DirectionModel
    why: str


def _interval(errors: list[float], regressor: str) -> Interval:
    """Return the interval of errors made elsewhere in the same way; where nothing alike was measured, of two GPUs'."""
    if errors:
        half = round(upper_quantile(np.abs(np.array(errors)), COVERAGE), 5)
    else:
        half = measured_log_error(operators_of(regressor)[0])
    return Interval(inside=(-half, half), outside=half, outside_distance=FAR_LOG_DISTANCE)


def _amount(operator: Operator, shape: Shape, direction: Direction, sms: int) -> float:
    work = operator.work(shape, direction, sms)
    return work.flops or work.size_bytes


def _computes(regressor: str) -> bool:
    """Return whether an operator is made of matrix products, which have FLOP terms, rather than of streamed bytes."""
    return "flops" in operators_of(regressor)[0].extra_kinds


def slowdown(examples: tuple[Example, ...], direction: Direction, donor: PublishedSystem) -> float:
    """Return how much slower per work the donor runs ``direction`` than the other one: the median over shapes."""
    other = BOTH[1 - BOTH.index(direction)]
    sms = int(donor.hardware.gpu.num_multiprocessors.value)
    ratios = []
    for example in examples:
        operator = catalogue()[example.operator]
        times = [donor.cost(operator, d, example.shape).us for d in (direction, other)]
        amounts = [_amount(operator, example.shape, d, sms) for d in (direction, other)]
        ratios.append(times[0] / times[1] * amounts[1] / amounts[0])
    return float(np.median(ratios))


def slowed(model: DirectionModel, factor: float, interval: Interval | None = None) -> DirectionModel:
    """Return the model with all device terms ``factor`` times slower; launching takes as long as before."""
    return model.model_copy(
        update={
            "physics": (model.physics[0], *rounded([c * factor for c in model.physics[1:]])),
            "interval": interval or model.interval,
            "intervals": {},
            "origin": "analytic",
            "rows": 0,
        }
    )


def rescaled(model: DirectionModel, operator: Operator, donor: Gpu, own: Gpu, precision: str) -> DirectionModel:
    """Return the physics of a model on another GPU: each term scaled by the ratio of the peaks that bound it."""
    physics = scaled_physics(model.physics, operator, donor, own, precision)
    return model.model_copy(
        update={"physics": physics, "baseline": 0.0, "trees": (), "intervals": {}, "origin": "analytic", "rows": 0}
    )


def _log_errors(
    model: DirectionModel, examples: tuple[Example, ...], direction: Direction, system: System, regressor: str
) -> list[float]:
    members = tuple(operator.name for operator in operators_of(regressor))
    answer = DirectionRegressor(model, members, int(system.gpu.num_multiprocessors.value)).answer
    return [log(e.us / answer(catalogue()[e.operator], direction, e.shape).us) for e in examples]


@dataclass(frozen=True, slots=True)
class Donor:
    """A published system and its operators' regressors."""

    system: PublishedSystem
    files: dict[str, RegressorFile]


@dataclass(frozen=True, slots=True)
class Deriver:
    """Derives for one system from its own fits and its donor."""

    system: System
    fits: dict[tuple[str, Direction], Fit]
    donor: PublishedSystem
    donor_files: dict[str, RegressorFile]

    def _pairs(self) -> list[tuple[Fit, Fit]]:
        """Return (forward, backward) of the operators that both systems measured in both directions."""
        result = []
        for (name, direction), forward in self.fits.items():
            backward = self.fits.get((name, Direction.BACKWARD))
            donor = self.donor_files.get(name)
            if direction is not Direction.FORWARD or donor is None or backward is None:
                continue
            both = forward.model and backward.model and Direction.BACKWARD in donor.directions
            if both and all(model.origin == MEASURED for model in donor.directions.values()):
                result.append((forward, backward))
        return result

    def direction(self, missing: Fit) -> Derived | None:
        """Derive a direction from the other one of the same regressor."""
        other = BOTH[1 - BOTH.index(missing.direction)]
        known = self.fits.get((missing.regressor, other))
        if known is None or known.model is None or missing.regressor not in self.donor_files:
            return None
        errors: list[float] = []
        computes = _computes(missing.regressor)
        for pair in self._pairs():
            if _computes(pair[0].regressor) != computes:
                continue
            have, want = pair if other is Direction.FORWARD else pair[::-1]
            assert have.model is not None
            factor = slowdown(have.examples, missing.direction, self.donor)
            model = slowed(have.model, factor)
            errors += _log_errors(model, want.examples, missing.direction, self.system, want.regressor)
        factor = slowdown(known.examples, missing.direction, self.donor)
        why = (
            f"no usable row: the {other} regressor on the {missing.direction} work, {factor:.3f} times slower per unit "
            f"of work, as the regressors of {self.donor.name} have it"
        )
        return Derived(
            missing.regressor, missing.direction, slowed(known.model, factor, _interval(errors, missing.regressor)), why
        )

    def regressor(self, name: str) -> list[Derived]:
        """Derive a whole regressor from the donor's physics."""
        own, donor, precision = self.system.gpu, self.donor.hardware.gpu, self.donor.precision
        errors: list[float] = []
        for (measured, direction), fit in self.fits.items():
            file = self.donor_files.get(measured)
            alike = _computes(measured) == _computes(name)
            if alike and fit.model and file and direction in file.directions:
                model = rescaled(file.directions[direction], operators_of(measured)[0], donor, own, precision)
                errors += _log_errors(model, fit.examples, direction, self.system, measured)
        found = []
        for direction, lent in self.donor_files[name].directions.items():
            model = rescaled(lent, operators_of(name)[0], donor, own, precision)
            model, why = self._levelled(model.model_copy(update={"interval": _interval(errors, name)}), name, direction)
            found.append(Derived(name, direction, model, why))
        return found

    def _levelled(self, model: DirectionModel, name: str, direction: Direction) -> tuple[DirectionModel, str]:
        """Return a donor's model scaled to this system's few rows, and the sentence that says so."""
        scaled = f"the physics of {self.donor.name}, scaled by the ratio of the GPUs' peaks"
        fit = self.fits.get((name, direction))
        if fit is None or len(fit.examples) < FEWEST_EXAMPLES:
            return model, f"no usable row: {scaled}"
        level = float(np.median(_log_errors(model, fit.examples, direction, self.system, name)))
        why = f"too few rows to fit: {scaled}, then by {np.exp(level):.3f}, the median of {len(fit.examples)} shapes"
        return model.model_copy(update={"baseline": round(level, 6)}), why


def read_donor(folder: Path, precision: str) -> Donor:
    """Open a published system as a donor.

    Raises:
        FileNotFoundError: the folder is not a published system.
        PublishedError: a file is damaged, or this precision is not measured.
    """
    system = PublishedSystem(folder, precision)
    manifest = read_manifest(folder)
    files = {}
    for name in system.regressor_names(OPERATOR_FOLDER):
        path = f"{OPERATOR_FOLDER}/" + REGRESSOR_FILE.format(gpu=system.gpu, regressor=name, precision=precision)
        files[name] = RegressorFile.model_validate_json(read_verified(folder, path, manifest))
    return Donor(system, files)


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
    """Return the collectives' models with the host's part of a message told apart from the network interface's.

    Messages were measured from one GPU of a node only, where the two look alike. All-reduce ran on one to four of
    them, so it knows what the GPUs of a node share on the way out; that part of a message's time per byte is the
    host's.
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


def derive_operators(fits: list[Fit], system: System, donor: Donor) -> list[Derived]:
    """Return the operators that the donor can answer for."""
    deriver = Deriver(
        system,
        {(f.regressor, f.direction): f for f in fits if f.regressor not in COLLECTIVES},
        donor.system,
        donor.files,
    )
    found: list[Derived] = []
    catalogued = sorted({operator.regressor_name for operator in catalogue().values()})
    for name in catalogued:
        absent = [d for d in operators_of(name)[0].directions if not _measured(deriver, name, d)]
        if absent and len(absent) == len(operators_of(name)[0].directions):
            found += deriver.regressor(name) if name in donor.files else []
        else:
            found += [d for d in (deriver.direction(deriver.fits[name, direction]) for direction in absent) if d]
    return found


def _measured(deriver: Deriver, name: str, direction: Direction) -> bool:
    fit = deriver.fits.get((name, direction))
    return fit is not None and fit.model is not None
