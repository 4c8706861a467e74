"""The work of a training without interruptions: steps, the ramp-up of the batch, and evaluation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, log

from predictor.core.costs.cost import Cost
from predictor.core.costs.published import PublishedSystem
from predictor.core.step.breakdown import StageParts
from predictor.core.step.memory import step_memory
from predictor.core.step.prediction import predict
from predictor.core.workload.run import TrainingRun
from predictor.core.workload.transformer_memory import checkpoint_bytes
from predictor.layout_search.answer import Winner
from predictor.training_plan.section import Evaluation, PlanFile

US_PER_HOUR = 3.6e9


@dataclass(frozen=True, slots=True)
class Work:
    """A training without interruptions; all its hours are as long as the step is, so that they err together.

    Attributes:
        tokens: trained.
        steps: with those of smaller batches at the beginning.
        step: of the whole batch, with what is not modelled.
        step_hours: of steps of the whole batch alone.
        ramp_up_hours: that smaller batches at the beginning add.
        evaluation_hours: of evaluation.
        gpu_bytes: of weights and optimizer on one GPU.
        checkpoint_bytes: of one copy of them all.
    """

    tokens: float
    steps: int
    step: Cost
    step_hours: float
    ramp_up_hours: float
    evaluation_hours: float
    gpu_bytes: float
    checkpoint_bytes: float

    @property
    def hours(self) -> float:
        """Return the hours of all of it."""
        return self.step_hours + self.ramp_up_hours + self.evaluation_hours


def work_of(winner: Winner, system: PublishedSystem, tokens: float, file: PlanFile) -> Work:
    """Return the work of a training in a layout."""
    prediction = winner.prediction
    run, step = prediction.run, prediction.step
    ramp_up, evaluation = file.ramp_up, file.evaluation
    samples = 0.0 if ramp_up is None else ramp_up.tokens / run.model.sequence_length
    further = 0.0 if ramp_up is None else ramp_up_steps(ramp_up.from_batch_size, run.global_batch_size, samples)
    whole = ceil(tokens / run.tokens_per_step)
    steps = whole + ceil(further)
    return Work(
        tokens=tokens,
        steps=steps,
        step=step,
        step_hours=whole * step.us / US_PER_HOUR,
        ramp_up_hours=further * _fixed_us(run, system, step) / US_PER_HOUR if further else 0.0,
        evaluation_hours=0.0 if evaluation is None else _evaluation_hours(run, winner.parts, step, evaluation, steps),
        gpu_bytes=max(memory.weights + memory.optimizer for memory in step_memory(prediction.tasks)),
        checkpoint_bytes=checkpoint_bytes(run),
    )


def ramp_up_steps(first: float, whole: float, samples: float) -> float:
    """Return the steps of a ramp-up beyond those of the whole batch, of a batch that grows evenly with the samples.

    That is ∫ ds ÷ B(s) from the first batch to the whole one, less the samples over the whole batch. Source:
    Megatron-LM, --rampup-batch-size: even increments, each after the same number of samples.

    >>> ramp_up_steps(64.0, 64.0, 1e6), round(ramp_up_steps(32.0, 64.0, 6400.0), 1)
    (0.0, 38.6)
    """
    if first >= whole:
        return 0.0
    return samples * log(whole / first) / (whole - first) - samples / whole


def _fixed_us(run: TrainingRun, system: PublishedSystem, step: Cost) -> float:
    """Return what of a step does not shrink with its micro-batches: that is what further steps add.

    A step is a fixed part and one for every micro-batch; half the micro-batches tell both. Where there are too few to
    halve, smaller batches are as slow as the whole one.
    """
    stages = run.layout.pipeline_parallel_size
    half = run.num_micro_batches // 2 // stages * stages
    fixed = step.us
    if half:
        halved = predict(replace(run, num_micro_batches=half), system).step.us
        fixed = max(step.us - (step.us - halved) / (run.num_micro_batches - half) * run.num_micro_batches, 0.0)
    return fixed


def _evaluation_hours(run: TrainingRun, parts: StageParts, step: Cost, evaluation: Evaluation, steps: int) -> float:
    """Return the hours of evaluation: forward passes alone, with their share of all that a step waits for."""
    passes = parts.forward_us + parts.recompute_us + parts.backward_us
    forward_us = step.us * (parts.forward_us / passes if passes > 0.0 else 1.0)
    evaluations = steps // evaluation.every_steps
    return evaluations * evaluation.tokens / run.tokens_per_step * forward_us / US_PER_HOUR
