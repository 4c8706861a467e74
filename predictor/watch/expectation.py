"""A prediction as the expected step of a run."""

from __future__ import annotations

from collections.abc import Mapping

from predictor.core.costs.cost import Cost
from predictor.core.predict.prediction import StepPrediction
from predictor.core.report.stage_table import LABELS
from predictor.core.step.breakdown import stage_parts
from predictor.core.step.memory import GIB
from predictor.watch.health import Expected

US_PER_S = 1e6


def timed(step: Cost, parts_us: Mapping[str, float], source: str) -> Expected:
    """Return an expected step: time, 90 % interval, and its parts in seconds without those that take no time."""
    return Expected(
        seconds=step.us / US_PER_S,
        low_s=step.low_us / US_PER_S,
        high_s=step.high_us / US_PER_S,
        parts={name: us / US_PER_S for name, us in parts_us.items() if us},
        source=source,
    )


def expected(predicted: StepPrediction) -> Expected:
    """Return what a prediction expects of a run: time by the parts of the critical stage, batch, FLOPs, memory."""
    from dataclasses import replace

    prediction, run = predicted.prediction, predicted.run
    critical = stage_parts(prediction)[prediction.critical_stage]
    limit = predicted.loaded.system.hardware.gpu.memory_gib
    gpus = run.layout.num_gpus
    return replace(
        timed(predicted.step, {label: getattr(critical, name) for name, label in LABELS.items()}, predicted.name),
        tokens=run.tokens_per_step,
        samples=run.global_batch_size,
        sequence_length=run.model.sequence_length,
        flops=run.model_flops_per_token * run.tokens_per_step,
        peak_flops_per_second=prediction.peak_tflop_per_s * 1e12 * gpus,
        memory_bytes=predicted.memory_gib * GIB,
        memory_limit_bytes=None if limit is None else limit.value * GIB,
        num_gpus=gpus,
    )
