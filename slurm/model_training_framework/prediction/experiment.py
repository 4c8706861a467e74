"""An experiment's step time, memory, duration and cost, before it runs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from model_training_framework.config import ConfigurationError, ExperimentConfig
from model_training_framework.prediction.question import Answer, answer, changes_with, question_of, steps_of
from model_training_framework.utils import Error, Result, Success
from model_training_framework.utils.tables import amount, interval
from predictor.core.base.words import counted
from predictor.core.step.memory import GIB
from predictor.core.step.memory_verdict import MemoryVerdict, fits_in_memory, memory_verdict
from predictor.formats.experiment import gpus_per_node

US_PER_HOUR = 3.6e9
US_PER_S = 1e6
SECONDS_PER_HOUR = 3600.0


class PredictionError(ConfigurationError):
    """An experiment that cannot be predicted; the message is the reason."""


@dataclass(frozen=True, slots=True)
class ExperimentPrediction:
    """What is known of an experiment before it runs.

    Hours are those of its steps alone: data loading, validation, checkpoints, failures and waiting are not in them.

    Attributes:
        experiment_name: its name.
        system: the published system that it was predicted on.
        num_gpus: GPUs that its processes use.
        step_s, low_step_s, high_step_s: one step (parameter update) and its 90 % interval, seconds.
        source: the weakest source of any part of the step: interpolated, extrapolated, analytic.
        samples_per_second, tokens_per_second: of the whole run.
        memory_gib: what the fullest GPU needs, GiB.
        gpu_memory_gib: what a GPU has; None where the system does not say.
        parameters: of the model.
        steps: that the experiment asks for; None where it does not say how many samples an epoch has.
        hours, low_hours, high_hours: of all steps; None without a number of steps.
        gpu_hours: of all GPUs that the job is given, used or not.
        cost: gpu_hours × price_per_gpu_hour; None without a price.
        notes: what a reader must know before trusting the numbers, a sentence each.
    """

    experiment_name: str
    system: str
    num_gpus: int
    step_s: float
    low_step_s: float
    high_step_s: float
    source: str
    samples_per_second: float
    tokens_per_second: float
    memory_gib: float
    gpu_memory_gib: float | None
    parameters: int
    steps: int | None
    hours: float | None
    low_hours: float | None
    high_hours: float | None
    gpu_hours: float | None
    cost: float | None
    notes: tuple[str, ...]

    @property
    def fit(self) -> MemoryVerdict | None:
        """Return whether it fits, may not, or does not; None where the system does not say what a GPU holds."""
        return memory_verdict(self.memory_gib * GIB, self.gpu_memory_gib)

    @property
    def fits(self) -> bool | None:
        """Return whether it fits; None where that cannot be told."""
        return fits_in_memory(self.fit)

    @property
    def refusal(self) -> str | None:
        """Return why it cannot run, in a line; None where nothing speaks against it."""
        if self.fits is not False:
            return None
        return (
            f"it needs {self.memory_gib:.1f} GiB on the fullest GPU and {self.system} has {self.gpu_memory_gib:.1f}; "
            "lower training.batch_size, or raise zero_stage, tensor_parallel_size or the number of GPUs"
        )

    def text(self) -> str:
        """Return step, speed, memory, duration and cost in a line."""
        step = interval(self.step_s, self.low_step_s, self.high_step_s)
        parts = [f"{step} per step", f"{self.tokens_per_second:,.0f} tokens/s"]
        if self.gpu_memory_gib is None:
            parts.append(f"{self.memory_gib:.1f} GiB")
        else:
            parts.append(f"{self.memory_gib:.1f} of {self.gpu_memory_gib:.1f} GiB, {self.fit}")
        duration = self._duration()
        parts.append(f"{self.steps:,} steps in {duration}" if duration else "number of steps unknown")
        parts += [] if self.gpu_hours is None else [f"{amount(self.gpu_hours)} GPU-hours"]
        parts += [] if self.cost is None else [f"cost {amount(self.cost)}"]
        return f"{', '.join(parts)}; {counted(self.num_gpus, 'GPU')} of {self.system}, {self.source}"

    def cells(self) -> dict[str, str]:
        """Return it as the cells of a row, by the titles of their columns."""
        memory = f"{self.memory_gib:.1f}"
        if self.gpu_memory_gib is not None:
            memory += f" of {self.gpu_memory_gib:.1f}, {'too much' if self.fits is False else self.fit}"
        cells = {
            "step (90 %)": interval(self.step_s, self.low_step_s, self.high_step_s),
            "tokens/s": f"{self.tokens_per_second:,.0f}",
            "GiB per GPU": memory,
            "GPUs": f"{self.num_gpus:,}",
            "steps": "unknown" if self.steps is None else f"{self.steps:,}",
        }
        cells["duration (90 %)"] = self._duration()
        cells["GPU-hours"] = "" if self.gpu_hours is None else amount(self.gpu_hours)
        cells["cost"] = "" if self.cost is None else amount(self.cost)
        return cells | {"system": self.system, "source": self.source}

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON holds it."""
        return {**asdict(self), "notes": list(self.notes), "fits": self.fits, "fit": self.fit}

    def _duration(self) -> str:
        """Return the duration of all steps and its interval; empty without a number of steps."""
        if self.hours is None or self.low_hours is None or self.high_hours is None:
            return ""
        return interval(*(hours * SECONDS_PER_HOUR for hours in (self.hours, self.low_hours, self.high_hours)))


def predict_experiment(config: ExperimentConfig, project_root: str | Path | None = None) -> ExperimentPrediction:
    """Predict step time, memory, duration and cost of an experiment, without a GPU.

    Model, batch, precision and layout are those of its own sections; ``prediction.config`` adds to them or replaces
    them; ``prediction.system`` names the published system. predictor/formats/experiment.py says what is
    assumed beyond that, and the notes repeat what matters. Equal questions, as in a grid over learning rates, are
    answered once.

    Args:
        config: the experiment.
        project_root: folder that a file or a folder in ``prediction`` is relative to; the current one if absent.

    Raises:
        PredictionError: it cannot be predicted: no sizes of a transformer, no system or an unknown one, a precision
            that was not measured there, a layout that is not possible. The message is one line.
    """
    found = try_predict(config, project_root)
    if isinstance(found, Error):
        raise PredictionError(f"experiment {config.experiment_name} cannot be predicted: {found.error}")
    return found.value


def try_predict(config: ExperimentConfig, project_root: str | Path | None = None) -> Result[ExperimentPrediction, str]:
    """Predict as ``predict_experiment``, but return the reason where there is no prediction."""
    base = Path.cwd() if project_root is None else Path(project_root).resolve()
    found = answer(question_of(config, base), changes_with(config, base))
    return Success(_prediction(config, found.value)) if isinstance(found, Success) else found


def _prediction(config: ExperimentConfig, found: Answer) -> ExperimentPrediction:
    steps = steps_of(config)
    hours = None if steps is None else steps * found.us / US_PER_HOUR
    allocated = gpus_per_node(config.slurm.gres) if config.slurm is not None else None
    nodes = config.slurm.nodes if config.slurm is not None else 1
    gpu_hours = None if hours is None else hours * max(found.num_gpus, nodes * (allocated or 0))
    price = config.prediction.price_per_gpu_hour if config.prediction is not None else None
    return ExperimentPrediction(
        experiment_name=config.experiment_name,
        system=found.system,
        num_gpus=found.num_gpus,
        step_s=found.us / US_PER_S,
        low_step_s=found.low_us / US_PER_S,
        high_step_s=found.high_us / US_PER_S,
        source=found.source,
        samples_per_second=found.samples / found.us * US_PER_S,
        tokens_per_second=found.tokens / found.us * US_PER_S,
        memory_gib=found.memory_gib,
        gpu_memory_gib=found.gpu_memory_gib,
        parameters=found.parameters,
        steps=steps,
        hours=hours,
        low_hours=None if steps is None else steps * found.low_us / US_PER_HOUR,
        high_hours=None if steps is None else steps * found.high_us / US_PER_HOUR,
        gpu_hours=gpu_hours,
        cost=None if gpu_hours is None or price is None else gpu_hours * price,
        notes=found.notes,
    )
