"""A published system calibrated with measured steps: factors, errors before and after, unused measurements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, sqrt
from pathlib import Path
from statistics import mean

from predictor.core.base.errors import ConfigError
from predictor.core.costs.folder import read_hardware, read_manifest
from predictor.core.hardware.hardware import COMPONENTS, Calibration, Factor, System
from predictor.core.schema.finding import find_folder
from predictor.core.step.calibrated import TWO_SIDED_90, log_error
from predictor.evidence.calibration.contradictions import check_agreement
from predictor.evidence.calibration.factor_estimate import FactorEstimate, estimate_factors
from predictor.evidence.calibration.inputs import read_observations
from predictor.evidence.calibration.observations import Observation
from predictor.evidence.calibration.plausibility import HOPELESS, check_factors, check_times
from predictor.evidence.calibration.priors import prior_of
from predictor.evidence.verification.answer import Failed

# A factor farther from 1 than so many standard deviations of its prior is said: a wrong configuration looks like it.
SURPRISING = 2.5
NOTHING_COMMON = (
    "these runs err in different ways: on average each misses no less with the factors of the others ({after:.1%}) "
    "than as published ({before:.1%}), so that factors would help nobody. Add runs like those to predict, and check "
    "what the configurations say; nothing was written"
)


@dataclass(frozen=True, slots=True)
class Calibrated:
    """A calibration and what it rests on.

    Attributes:
        folder: of the published system that was calibrated.
        hardware: of that system.
        observations: measured steps.
        priors: standard deviations of the factors' logs.
        fitted: factors and errors.
        failed: measured steps that cannot be predicted.
    """

    folder: Path
    hardware: System
    observations: tuple[Observation, ...]
    priors: tuple[float, ...]
    fitted: FactorEstimate
    failed: tuple[Failed, ...]

    def calibration(self, base: str) -> Calibration:
        """Return what the calibrated system's file holds.

        Args:
            base: how that file names the published system.
        """
        rows = self.fitted.covariance
        factors = {
            name: Factor(factor=exp(self.fitted.logs[i]), log_error=TWO_SIDED_90 * sqrt(rows[i][i]))
            for i, name in enumerate(COMPONENTS)
            if any(abs(gradient[i]) > 0.0 for gradient in self.fitted.gradients)
        }
        return Calibration(
            base=base, factors=factors, covariance=rows, residual=self.fitted.residual, runs=len(self.observations)
        )

    def errors(self, misses: Sequence[float]) -> float:
        """Return the mean absolute error of predictions that miss by these logs of measured over predicted."""
        return mean(abs(exp(-miss) - 1.0) for miss in misses)

    def width(self, position: int) -> tuple[float, float]:
        """Return high end over low end of a run's 90 % interval, published and calibrated."""
        low, high = self.observations[position].interval
        half = log_error(self.fitted.gradients[position], self.fitted.covariance, self.fitted.residual)
        return high / low, exp(2.0 * half)

    @property
    def before(self) -> tuple[float, ...]:
        """Return every run's log of measured over published time, what is not modelled included."""
        return tuple(miss - run.expected for miss, run in zip(self.fitted.before, self.observations, strict=True))

    @property
    def notes(self) -> tuple[str, ...]:
        """Return what a reader should know: factors that no published interval expects."""
        return tuple(
            f"{name} takes {exp(log_factor):.2f} times as long as published, {abs(log_factor) / prior:.1f} standard "
            "deviations of what is known beforehand: check system and configurations"
            for name, log_factor, prior in zip(COMPONENTS, self.fitted.logs, self.priors, strict=True)
            if abs(log_factor) > SURPRISING * prior
        )

    def check_that_it_helps(self) -> None:
        """Check that runs come out better with the factors of the others.

        One configuration alone cannot tell, nor can the components of a trace, each of which has a factor of its own.

        Raises:
            ConfigError: they do not.
        """
        before, after = self.errors(self.before), self.errors(self.fitted.left_out)
        if len({run.same_as for run in self.observations if run.is_step}) > 1 and after >= before:
            raise ConfigError(NOTHING_COMMON.format(before=before, after=after))


def calibrate(paths: Sequence[str], system: str) -> Calibrated:
    """Calibrate a published system with measured steps.

    Args:
        paths: tables of runs, configurations with ``measured_seconds``, records, or folders of them.
        system: name of a published system, or its folder.

    Raises:
        ConfigError: there is no measured step, times are implausible, runs contradict each other, no factors make
            the others better, or the system is calibrated already.
        PublishedError: no run can be predicted.
        OSError, yaml.YAMLError: a file cannot be read.
    """
    folder = find_folder(system, Path.cwd())
    hardware = read_hardware(folder, read_manifest(folder))
    if hardware.calibration is not None:
        raise ConfigError(
            f"--system {system} is calibrated already; calibrate {hardware.calibration.base} with the runs of both"
        )
    observations, failed = read_observations(paths, str(folder))
    if not observations:
        raise ConfigError(
            "nothing to calibrate with: name a CSV of runs, configurations with measured_seconds, or records"
        )
    prior = prior_of(observations)
    priors = prior.deviations
    check_times(observations, priors, HOPELESS)
    fitted = estimate_factors(observations, prior)
    check_agreement(observations, fitted, priors)
    check_times(observations, priors)
    check_factors(fitted.logs)
    calibrated = Calibrated(folder, hardware, tuple(observations), priors, fitted, tuple(failed))
    calibrated.check_that_it_helps()
    return calibrated
