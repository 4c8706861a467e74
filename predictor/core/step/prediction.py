"""A training run's step: its time, and its throughput."""

from __future__ import annotations

from dataclasses import dataclass

from predictor.core.costs.low_precision import peak_tflop_per_s
from predictor.core.costs.published import PublishedSystem
from predictor.core.step.composition import StepTime, fields_of, step_in
from predictor.core.step.discrepancy import Discrepancy, discrepancy, operators_deviation
from predictor.core.step.memory_verdict import retries_on
from predictor.core.workload.low_precision import product_precision
from predictor.core.workload.measured_kernels import on_system
from predictor.core.workload.run import TrainingRun
from predictor.core.workload.transformer_step import transformer_step


@dataclass(frozen=True, slots=True)
class Prediction(StepTime):
    """The time of one step of a run on a system; ``step`` includes what is not modelled.

    Attributes:
        run: the run.
        system, gpu: names of the published system and of its GPU.
        peak_tflop_per_s: of the GPU in the precision of the run's products.
        discrepancy: of the step from its modelled time; None where the model alone answers.
    """

    run: TrainingRun
    system: str
    gpu: str
    peak_tflop_per_s: float
    discrepancy: Discrepancy | None = None

    @property
    def tokens_per_second(self) -> float:
        """Return tokens per second of the whole run."""
        return self.run.tokens_per_step / self.step.us * 1e6

    @property
    def model_flops_per_second(self) -> float:
        """Return model FLOP/s per GPU, recomputation not counted."""
        flops = self.run.model_flops_per_token * self.run.tokens_per_step
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
    modelled = step_in(run.precision, transformer_step(on_system(run, system)), system)
    operators = operators_deviation(modelled.step, modelled.closing)
    found = discrepancy(run, system, modelled.host_share, operators)
    fields = fields_of(modelled)
    if found is not None:
        fields["step"] = found.applied(modelled.step, retries_on(modelled.tasks, system))
    return Prediction(
        **fields,
        run=run,
        system=system.name,
        gpu=system.gpu,
        peak_tflop_per_s=peak_tflop_per_s(system.hardware.gpu, product_precision(run)),
        discrepancy=found,
    )
