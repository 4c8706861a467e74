"""Measured runs beside their predictions: step, parts and operators as one record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

from predictor.core.base.errors import ConfigError
from predictor.evidence.verification.configurations import Configured, configured, kind_of
from predictor.evidence.verification.drift import drift, is_disturbed, largest, read_reference
from predictor.evidence.verification.measured import ComparedStep, MeasuredStep
from predictor.evidence.verification.operators import compared_operators, counted_errors, predicted_time
from predictor.evidence.verification.parts import compared_parts
from predictor.evidence.verification.transformers import recorded
from predictor.replay.files.measured_run import MeasuredRun, noise
from predictor.replay.files.verified_run import Launch, VerifiedRun


@dataclass(frozen=True, slots=True)
class Verified:
    """A run beside its prediction.

    Attributes:
        compared: the whole step.
        record: everything, as it is stored.
        launches: what was measured here; empty for a time that others report.
    """

    compared: ComparedStep
    record: VerifiedRun
    launches: tuple[MeasuredRun, ...]


def measured_step(configuration: Configured, launches: Sequence[MeasuredRun]) -> MeasuredStep:
    """Return a run's step: the median of a launch, the mean of these over the launches."""
    return MeasuredStep(
        table="",
        name=configuration.name,
        seconds=mean(launch.step_us for launch in launches) / 1e6,
        num_gpus=launches[0].provenance.world_size,
        config=configuration.content,
        statistic="median",
    )


def _provenance(launches: Sequence[MeasuredRun]) -> dict[str, Any]:
    """Return where a run was measured; of the last launch, as the first may be of an earlier day."""
    if not launches:
        return {}
    told = launches[-1].provenance
    names = ("device", "device_kind", "driver", "threads", "host", "commit", "finished", "versions")
    return {name: getattr(told, name) for name in names}


def verified(configuration: Configured, step: MeasuredStep, launches: Sequence[MeasuredRun] = ()) -> Verified:
    """Predict a run and compare it with what was measured.

    Args:
        configuration: that ran, on the system that predicts.
        step: measured.
        launches: that it was measured in; none where only the time of the step is known.

    Raises:
        ConfigError: it ran on another number of ranks, or in other pipeline stages, than its configuration has.
        PublishedError: the system lacks a regressor that the run needs.
    """
    workload = configuration.workload
    system = workload.system
    if step.num_gpus != configuration.num_gpus:
        ranks = f"{step.num_gpus} ranks; its configuration has {configuration.num_gpus}"
        raise ConfigError(f"{configuration.name} ran on {ranks}")
    stages = sorted({stage for launch in launches for stage in launch.stages})
    if launches and stages != list(range(workload.num_stages)):
        recorded = ", ".join(map(str, stages))
        raise ConfigError(
            f"{configuration.name} has records of pipeline stages {recorded}; its configuration has "
            f"{workload.num_stages}"
        )
    prediction = workload.predict()
    compared = ComparedStep(step, prediction, system)
    operators = compared_operators(prediction, system, launches)
    measured_us = step.seconds * 1e6
    errors = counted_errors(operators, measured_us)
    references = [read_reference(each.folder) for each in launches]
    drifts = [drift(reference, system.hardware) for reference in references]
    record = VerifiedRun(
        name=step.name,
        group=step.table,
        statistic=step.statistic,
        configuration=configuration.content,
        config_hash=configuration.config_hash,
        num_gpus=step.num_gpus,
        system=system.name,
        gpu=system.gpu,
        precision=workload.precision,
        **_provenance(launches),
        predicted=predicted_time(prediction.step),
        measured_us=measured_us,
        error=compared.error,
        drift=largest(drifts),
        disturbed=is_disturbed(largest(drifts)),
        inside=compared.is_inside,
        noise=noise(launches),
        launches=tuple(
            Launch(
                step_us=each.step_us,
                spread=each.spread,
                samples_us=each.samples_us,
                profiled_us=each.profiled_us,
                drift=slower,
                tries=1 if reference is None else reference.tries,
            )
            for each, reference, slower in zip(launches, references, drifts, strict=True)
        ),
        parts=tuple(compared_parts(prediction, launches)) if launches else (),
        operators=tuple(operators),
        operator_error=median(errors) if errors else None,
        compared_operators=len(errors),
    )
    return Verified(compared, record, tuple(launches))


def verified_launches(configuration: Configured, launches: Sequence[MeasuredRun]) -> Verified:
    """Compare a recorded run with its prediction; errors as ``verified``."""
    return verified(configuration, measured_step(configuration, launches), launches)


def recorded_configuration(name: str, launches: Sequence[MeasuredRun], system: str | None) -> Configured:
    """Return the configuration that a run's records hold.

    Args:
        name: for messages and tables.
        launches: of the run.
        system: that predicts; records of the trainer's own configurations may name one.

    Raises:
        ConfigError: they hold none that a prediction reads.
    """
    content = launches[0].provenance.configuration
    if kind_of(content) is None:
        raise ConfigError(f"{name}: its records hold no configuration that can be predicted; name its file as CONFIG")
    return configured(name, recorded(content), Path.cwd(), system)
