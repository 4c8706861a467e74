"""Observations: steps measured on one's own cluster, each beside its time on the published system."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from functools import partial
from math import log
from typing import NamedTuple

from predictor.core.costs.calibration import component_of
from predictor.core.costs.cost import ZERO, Cost
from predictor.core.costs.operator import Direction, Operator, Shape
from predictor.core.costs.published import PublishedSystem
from predictor.core.hardware.hardware import COMPONENTS, Component
from predictor.core.step.calibrated import Time
from predictor.core.step.composition import StepTime, step_us
from predictor.core.step.discrepancy import discrepancy_model
from predictor.core.step.prediction import Prediction
from predictor.core.workload.step_tasks import StepTasks
from predictor.evidence.verification.configurations import Configured

# The same kernel twice on the A100 of the measured tables: 3.0 %, of which a run's median is one sample; GH200: 1.0 %.
RUN_NOISE = 0.03
# Spread of whole steps between layouts on a machine whose operators were measured, as the standard deviation of a log.
# Mean absolute errors on the GPT-NeoX jobs of the two measured clusters are 1.5 and 3.2 %, 1.9 to 4.0 % of a normal
# one; it was set within them.
LAYOUT_SPREAD = 0.034
# Medians of two launches lie 1.128 standard deviations apart on average.
SPREAD_OF_TWO = 1.128


class Call(NamedTuple):
    """A call of an operator or a collective, and how often a step makes it."""

    operator: Operator
    direction: Direction
    shape: Shape
    times: float


@dataclass(frozen=True, slots=True)
class Observation:
    """A measured step, or a measured component of a step.

    Attributes:
        name: of the run.
        source: file that holds it.
        same_as: equal for runs of one configuration.
        measured_us: its time.
        noise: standard deviation of the log of that time.
        time: what a system predicts for it, in microseconds.
        system: published, without factors.
        parts: published times by component, intervals added up; of one rank, hidden traffic included.
        interval: 90 % interval of the published prediction.
        expected: log of the published prediction over its modelled time.
        systematic: deviation of that log between clusters and frameworks that are like this one.
        is_step: it is a whole step, not a component of a traced one.
    """

    name: str
    source: str
    same_as: str
    measured_us: float
    noise: float
    time: Time
    system: PublishedSystem
    parts: dict[Component, Cost]
    interval: tuple[float, float]
    expected: float = 0.0
    systematic: float = field(default_factory=lambda: discrepancy_model().unknown)
    is_step: bool = True

    @property
    def spread(self) -> float:
        """Return the standard deviation of misses between runs of one cluster, as a log."""
        return max(discrepancy_model().within, LAYOUT_SPREAD) if self.is_step else LAYOUT_SPREAD

    @property
    def log_published(self) -> float:
        """Return the log of the time that the published system predicts."""
        return log(self.time(self.system))

    @property
    def log_measured(self) -> float:
        """Return the log of the measured time."""
        return log(self.measured_us)


def parts_of_step(tasks: StepTasks, system: PublishedSystem) -> dict[Component, Cost]:
    """Return a step's time by component, of the stage with most of it; what is hidden counts too."""
    best: dict[Component, Cost] = {}
    for stage in dict.fromkeys(tasks.stages):
        parts: dict[Component, Cost] = defaultdict(lambda: ZERO)
        for task, times in tasks.calls(stage):
            component = component_of(task.operator, task.shape)
            if component is not None:
                parts[component] += system.cost(task.operator, task.direction, task.shape) * times
        if sum(cost.us for cost in parts.values()) > sum(cost.us for cost in best.values()):
            best = dict(parts)
    return {component: best[component] for component in COMPONENTS if component in best}


def _systematic(prediction: StepTime) -> float:
    """Return how far clusters and frameworks like a run's lie apart, as the deviation of a log."""
    found = prediction.discrepancy if isinstance(prediction, Prediction) else None
    return discrepancy_model().unknown if found is None else found.systematic


def observed_run(
    configuration: Configured, measured_us: float, source: str, noise: float | None = None, name: str = ""
) -> Observation:
    """Return a run of a configuration, predicted on the system that it was read for.

    Args:
        configuration: that ran.
        measured_us: of one step.
        source: file that holds the run.
        noise: how far medians of launches lie apart, over their mean; None where it is not known.
        name: of the run; the configuration's where it has none.

    Raises:
        PublishedError: the system lacks a regressor that the run needs.
    """
    workload = configuration.workload
    prediction = workload.predict()
    step = prediction.step
    return Observation(
        name=name or configuration.name,
        source=source,
        same_as=configuration.config_hash,
        measured_us=measured_us,
        noise=RUN_NOISE if noise is None else max(noise / SPREAD_OF_TWO, RUN_NOISE / 3.0),
        time=partial(step_us, prediction.tasks),
        system=workload.system,
        parts=parts_of_step(prediction.tasks, workload.system),
        interval=(step.low_us, step.high_us),
        expected=log(prediction.ratio),
        systematic=_systematic(prediction),
    )


def time_of_calls(calls: tuple[Call, ...], system: PublishedSystem) -> float:
    """Return how long calls take one after the other, in microseconds."""
    return sum(system.cost(call.operator, call.direction, call.shape).us * call.times for call in calls)


def half_width(cost: Cost) -> float:
    """Return half the width of a cost's 90 % interval, as a log."""
    return log(max(cost.high_us, 1e-9) / max(cost.low_us, 1e-9)) / 2.0 if cost.us > 0.0 else 0.0
