"""A training run's step: its time, and its throughput."""

from __future__ import annotations

from dataclasses import dataclass, replace

from predictor.costs.cost import Source
from predictor.costs.published import PublishedSystem
from predictor.step.composition import StepTime, time_step
from predictor.workloads.run import TrainingRun
from predictor.workloads.transformer_step import transformer_step


@dataclass(frozen=True, slots=True)
class Prediction(StepTime):
    """The time of one step of a run on a system.

    Attributes:
        run: the run.
        system, gpu: names of the published system and of its GPU.
        peak_tflop_per_s: of the GPU in the run's precision.
    """

    run: TrainingRun
    system: str
    gpu: str
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


def predict(run: TrainingRun, system: PublishedSystem) -> Prediction:
    """Predict one training step.

    Raises:
        PublishedError: the system lacks a regressor that the run needs.
    """
    timed = time_step(transformer_step(run), system)
    step = timed.step
    if run.precision != system.precision:
        # Answered from another precision with the same element size and peak.
        step = replace(step, source=max(step.source, Source.EXTRAPOLATED))
    return Prediction(
        tasks=timed.tasks,
        step=step,
        stages=timed.stages,
        message=timed.message,
        timeline=timed.timeline,
        end=timed.end,
        closing=timed.closing,
        run=run,
        system=system.name,
        gpu=system.gpu,
        peak_tflop_per_s=system.hardware.gpu.peak_tflop_per_s[run.precision].value,
    )
