"""Compose the step time: tasks → slots → timeline → step, with its 90 % interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from math import exp, hypot, log
from typing import Any, NamedTuple

from predictor.core.costs.cost import Cost, Source, total
from predictor.core.costs.published import PublishedSystem
from predictor.core.step.calibrated import calibrated_interval
from predictor.core.step.stages import StageTime, time_stages, time_tasks
from predictor.core.timeline.replay import Replay, replay
from predictor.core.timeline.schedules import SCHEDULES
from predictor.core.timeline.step_end import StepEnd, end_of_step
from predictor.core.workload.step_tasks import StepTasks

# The same kernels on two machines with the same GPU differ by a median of 5 % forward and 7 to 8 % backward (A100
# tables of two sources, same shapes), and a run is not on the machine that was measured. As a log, for the whole step.
MACHINE_SPREAD = 0.08


@dataclass(frozen=True, slots=True)
class StepTime:
    """The time of one step of any workload and its parts, in microseconds.

    Attributes:
        tasks: the step's tasks and their memory.
        step: the step, with its 90 % interval and its weakest source; of a run with what is not modelled of it.
        stages: per pipeline stage.
        message: one message between neighbouring stages.
        timeline: the replay behind the point estimate.
        end: how the step ends behind the timeline.
        closing: the longest of the stages' updates, behind the last reduction.
    """

    tasks: StepTasks = field(repr=False, compare=False)
    step: Cost
    stages: tuple[StageTime, ...]
    message: Cost
    timeline: Replay
    end: StepEnd
    closing: Cost

    @property
    def critical_stage(self) -> int:
        """Return the stage whose end ends the step; its parts add up to the step."""
        return self.end.critical_stage

    @property
    def modelled_us(self) -> float:
        """Return the modelled time of the step."""
        return self.end.step

    @property
    def ratio(self) -> float:
        """Return the step over its modelled time: 1 but for runs whose published ones took longer or shorter."""
        return self.step.us / self.modelled_us

    @property
    def host(self) -> Cost:
        """Return how long the critical stage waits for the host's launches in a step, with the ends of its interval."""
        chunks = self.stages[self.critical_stage].chunks
        waits = [step_pass.host for chunk in chunks for step_pass in chunk.passes]
        return total(waits) * self.tasks.num_micro_batches

    @property
    def host_share(self) -> float:
        """Return the share of the modelled step in which the critical stage waits for the host's launches."""
        return self.host.us / self.modelled_us

    @property
    def bubble_us(self) -> float:
        """Return the time that the critical stage waits for others."""
        stage = self.critical_stage
        timeline = self.timeline
        return timeline.finished[stage] - timeline.busy[stage] - timeline.communicating[stage]


FIELDS = tuple(each.name for each in fields(StepTime))


class Durations(NamedTuple):
    """Durations of a replay's slots in µs, per stage and chunk; ``weight`` is empty where no slot is split off."""

    forward: list[list[float]]
    backward: list[list[float]]
    weight: list[list[float]]


def durations(step: StepTasks, stages: Sequence[StageTime], end: str = "us") -> Durations:
    """Return one end ("us", "low_us" or "high_us") of every slot's duration."""
    forward = [[getattr(chunk.forward.cost, end) for chunk in stage.chunks] for stage in stages]
    backward = [
        [getattr(chunk.recompute.cost, end) + getattr(chunk.backward.cost, end) for chunk in stage.chunks]
        for stage in stages
    ]
    if not SCHEDULES[step.schedule].splits_backward:
        return Durations(forward, backward, [])
    weight = [[getattr(chunk.weight.cost, end) for chunk in stage.chunks] for stage in stages]
    return Durations(forward, backward, weight)


def _compose(
    step: StepTasks, stages: Sequence[StageTime], message: Cost, closing: Cost, end: str
) -> tuple[Replay, StepEnd]:
    """Return timeline and end of the step from one end ("us", "low_us" or "high_us") of every cost."""
    slots = durations(step, stages, end)
    timeline = replay(
        SCHEDULES[step.schedule], step.num_micro_batches, *slots, getattr(message, end), step.blocking_transfers
    )
    exposed = [getattr(stage.exposed_reduction, end) for stage in stages]
    return timeline, end_of_step(timeline.finished, exposed, getattr(closing, end))


def widened(us: float, low_us: float, high_us: float) -> tuple[float, float]:
    """Return an interval's ends with the spread between machines added, independent of the regressors' own error."""
    below, above = log(us / low_us), log(high_us / us)
    return us * exp(-hypot(below, MACHINE_SPREAD)), us * exp(hypot(above, MACHINE_SPREAD))


def step_us(tasks: StepTasks, system: PublishedSystem) -> float:
    """Return the point estimate of one step alone, in microseconds."""
    stages = time_stages(system, tasks)
    closing = max((stage.optimizer + stage.gather for stage in stages), key=lambda cost: cost.us)
    return _compose(tasks, stages, time_tasks(system, tasks.message), closing, "us")[1].step


def time_step(tasks: StepTasks, system: PublishedSystem) -> StepTime:
    """Time one step of any workload.

    Raises:
        PublishedError: the system lacks a regressor that a task needs.
    """
    stages = time_stages(system, tasks)
    message = time_tasks(system, tasks.message)
    closing = max((stage.optimizer + stage.gather for stage in stages), key=lambda cost: cost.us)
    timeline, step_end = _compose(tasks, stages, message, closing, "us")
    (_, low), (_, high) = (_compose(tasks, stages, message, closing, end) for end in ("low_us", "high_us"))
    calibration = system.hardware.calibration
    if calibration is None:
        low_us, high_us = widened(step_end.step, low.step, high.step)
    else:
        time = partial(step_us, tasks)
        low_us, high_us = calibrated_interval(step_end.step, time, system, calibration)
    sources = [closing.source, message.source]
    for stage in stages:
        sources += [step_pass.cost.source for chunk in stage.chunks for step_pass in chunk.passes]
        sources.append(stage.reduction.source)
    step = Cost(step_end.step, low_us, high_us, max(sources))
    return StepTime(tasks, step, stages, message, timeline, step_end, closing)


def step_in(precision: str, tasks: StepTasks, system: PublishedSystem) -> StepTime:
    """Time one step of a run in a precision.

    Where the system answers from another precision, with the same element size and peak, it is extrapolated at best.
    """
    timed = time_step(tasks, system)
    if precision == system.precision:
        return timed
    return replace(timed, step=timed.step._replace(source=max(timed.step.source, Source.EXTRAPOLATED)))


def fields_of(timed: StepTime) -> dict[str, Any]:
    """Return the fields of a step's time, for a class that adds others."""
    return {name: getattr(timed, name) for name in FIELDS}
