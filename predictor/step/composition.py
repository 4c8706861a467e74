"""Compose the time of one training step: tasks → slots → timeline → step, with its interval and where it goes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, hypot, log
from typing import NamedTuple

from predictor.costs.cost import Cost, Source
from predictor.costs.published import PublishedSystem
from predictor.step.stages import StageTime, time_stages, time_tasks
from predictor.timeline.replay import Replay, replay
from predictor.timeline.schedules import SCHEDULES
from predictor.workloads.expand import transfer_tasks
from predictor.workloads.run import TrainingRun

# The same kernels on two machines with the same GPU differ by a median of 5 % forward and 7 to 8 % backward (A100
# tables of two sources, same shapes), and a run is not on the machine that was measured. As a log, for the whole step.
MACHINE_SPREAD = 0.08


@dataclass(frozen=True, slots=True)
class Prediction:
    """The time of one step and everything that it is made of; durations in microseconds.

    Attributes:
        step: the step, with its 90 % interval and its weakest source.
        stages: per pipeline stage.
        transfer: one message between neighbouring stages.
        timeline: the replay behind the point estimate.
        critical_stage: the stage whose end ends the step; its parts add up to the step.
        closing: optimizer and parameter gather behind the last reduction, the longest of any stage.
    """

    run: TrainingRun
    system: str
    gpu: str
    step: Cost
    stages: tuple[StageTime, ...]
    transfer: Cost
    timeline: Replay
    critical_stage: int
    closing: Cost
    peak_tflop_per_s: float

    @property
    def tokens_per_second(self) -> float:
        """Return tokens per second of the whole run."""
        return self.run.tokens_per_step / self.step.us * 1e6

    @property
    def model_flops_per_second(self) -> float:
        """Return model FLOP/s per GPU, recomputation not counted."""
        flops = self.run.model.model_flops_per_token() * self.run.tokens_per_step
        return flops / self.step.us * 1e6 / self.run.layout.num_gpus

    @property
    def mfu(self) -> float:
        """Return the model FLOP/s utilisation."""
        return self.model_flops_per_second / (self.peak_tflop_per_s * 1e12)

    @property
    def bubble_us(self) -> float:
        """Return the time that the critical stage waits for others."""
        stage = self.critical_stage
        timeline = self.timeline
        return timeline.finished[stage] - timeline.busy[stage] - timeline.communicating[stage]


class Durations(NamedTuple):
    """What a replay is asked with: µs per stage and piece; no weights where the schedule has no slots for them."""

    forward: list[list[float]]
    backward: list[list[float]]
    weight: list[list[float]]


def durations(run: TrainingRun, stages: Sequence[StageTime], end: str = "us") -> Durations:
    """Return one end ("us", "low_us" or "high_us") of every slot's duration."""
    forward = [[getattr(piece.forward.cost, end) for piece in stage.pieces] for stage in stages]
    backward = [
        [getattr(piece.recompute.cost, end) + getattr(piece.backward.cost, end) for piece in stage.pieces]
        for stage in stages
    ]
    weight = [[getattr(piece.weight.cost, end) for piece in stage.pieces] for stage in stages]
    return Durations(forward, backward, weight if SCHEDULES[run.schedule].splits_backward else [])


def _compose(
    run: TrainingRun, stages: Sequence[StageTime], transfer: Cost, closing: Cost, end: str
) -> tuple[float, Replay, int]:
    """Return step time, timeline and critical stage from one end ("us", "low_us" or "high_us") of every cost."""
    slots = durations(run, stages, end)
    timeline = replay(
        SCHEDULES[run.schedule], run.num_micro_batches, *slots, getattr(transfer, end), run.blocking_transfers
    )
    reduced = [t + getattr(s.exposed_reduction, end) for t, s in zip(timeline.finished, stages, strict=True)]
    critical = max(range(len(stages)), key=reduced.__getitem__)
    return reduced[critical] + getattr(closing, end), timeline, critical


def widened(us: float, low_us: float, high_us: float) -> tuple[float, float]:
    """Return an interval's ends with the spread between machines added, independent of the regressors' own error."""
    below, above = log(us / low_us), log(high_us / us)
    return us * exp(-hypot(below, MACHINE_SPREAD)), us * exp(hypot(above, MACHINE_SPREAD))


def predict(run: TrainingRun, system: PublishedSystem) -> Prediction:
    """Predict one training step.

    Raises:
        PublishedError: the system lacks a regressor that the run needs.
    """
    stages = time_stages(system, run)
    transfer = time_tasks(system, transfer_tasks(run))
    # Gradient norm and overflow check need every stage's gradients, so no optimizer starts before the last reduction.
    closing = max((stage.optimizer + stage.gather for stage in stages), key=lambda cost: cost.us)
    us, timeline, critical = _compose(run, stages, transfer, closing, "us")
    low_us = _compose(run, stages, transfer, closing, "low_us")[0]
    high_us = _compose(run, stages, transfer, closing, "high_us")[0]
    low_us, high_us = widened(us, low_us, high_us)
    sources = [closing.source, transfer.source]
    if run.precision != system.precision:
        sources.append(Source.EXTRAPOLATED)  # answered from another precision with the same element size and peak
    for stage in stages:
        sources += [one.cost.source for piece in stage.pieces for one in piece.passes]
        sources.append(stage.reduction.source)
    return Prediction(
        run=run,
        system=system.name,
        gpu=system.gpu,
        step=Cost(us, low_us, high_us, max(sources)),
        stages=stages,
        transfer=transfer,
        timeline=timeline,
        critical_stage=critical,
        closing=closing,
        peak_tflop_per_s=system.system.gpu.peak_tflop_per_s[run.precision].value,
    )
