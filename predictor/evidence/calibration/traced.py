"""Components of a traced step: operators that ``replay --record`` wrote, beside their published times."""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from pathlib import Path
from statistics import median

from predictor.core.base.errors import ConfigError, PublishedError
from predictor.core.costs.calibration import component_of
from predictor.core.costs.catalogue import catalogue
from predictor.core.costs.cost import ZERO
from predictor.core.costs.operator import Direction
from predictor.core.costs.published import PublishedSystem
from predictor.core.costs.work import STEP_PRECISIONS
from predictor.core.hardware.hardware import Component
from predictor.core.plan.loading import open_measured
from predictor.core.schema.finding import find_folder
from predictor.evidence.calibration.observations import Call, Observation, time_of_calls
from predictor.replay.record import TracedOperatorTimes, TracedStepRecord

# Standard deviation of operators' held-out errors on the measured clusters: means of 3.9 and 2.2 % on the largest fifth
# of the work (2.9 and 1.7 % on random shapes), the larger of which is 4.9 % of a normal one.
OPERATOR_NOISE = 0.05


def _call(row: TracedOperatorTimes) -> Call | None:
    """Return a row as calls of one of the predictor's operators; None where it is none."""
    if row.operator not in catalogue() or row.shape is None or row.direction is None:
        return None
    operator = catalogue()[row.operator]
    return Call(operator, Direction(row.direction), row.shape, float(len(row.samples_us)))


def observed_components(path: Path, system: str) -> list[Observation]:
    """Return every component of a traced step that the system can time; collectives wait for other ranks and stay out.

    Raises:
        RecordError: the file is damaged.
        ConfigError: the system can time none of its operators.
    """
    record = TracedStepRecord.read(path, "is no record of a traced step")
    folder = find_folder(system, Path.cwd())
    rows: dict[tuple[str, Component], list[tuple[Call, float]]] = defaultdict(list)
    for row in record.operators:
        call = _call(row)
        component = None if call is None else component_of(call.operator, call.shape)
        if call is not None and component is not None and row.precision in STEP_PRECISIONS:
            measured = median(row.samples_us) * len(row.samples_us)
            rows[row.precision, component].append((call, measured))
    observations = []
    for (precision, component), calls in rows.items():
        try:
            opened = open_measured(folder, precision)
            observations.append(_observation(record, path, opened, component, calls))
        except (ConfigError, PublishedError):  # said below, unless another precision or component can be timed
            continue
    if not observations:
        raise ConfigError(f"{path}: {folder.name} can time none of its operators; replay a trace in 16 bits")
    return observations


def _observation(
    record: TracedStepRecord,
    path: Path,
    system: PublishedSystem,
    component: Component,
    calls: list[tuple[Call, float]],
) -> Observation:
    cost = ZERO
    for call, _ in calls:
        cost += system.cost(call.operator, call.direction, call.shape) * call.times
    name = f"{record.label or path.stem} rank {record.rank}, {component}"
    return Observation(
        name=name,
        source=str(path),
        same_as=f"{path} {system.precision} {component}",
        measured_us=sum(us for _, us in calls),
        noise=OPERATOR_NOISE,
        time=partial(time_of_calls, tuple(call for call, _ in calls)),
        system=system,
        parts={component: cost},
        interval=(cost.low_us, cost.high_us),
        is_step=False,
    )
