"""Check the reference of preference learning against the model, its adapters and its layout."""

from __future__ import annotations

from predictor.core.base.errors import ConfigError
from predictor.core.schema.parallelism import ParallelismSection
from predictor.core.schema.sections import TrainingSection
from predictor.core.workload.run_choices import Reference
from predictor.core.workload.switches import Loss
from predictor.core.workload.transformer import Transformer

KEY = "training.reference_model"


def check_reference(model: Transformer, training: TrainingSection, layout: ParallelismSection) -> None:
    """Refuse a reference that the run cannot have beside its model.

    Raises:
        ConfigError: there are no adapters to leave out, stages, or a loss without a token's log-probability.
    """
    reference = training.reference_model
    if reference is None:
        if training.reference_passes > 1:
            raise ConfigError(
                f"training.reference_passes is {training.reference_passes} and {KEY} is absent; name one, or leave "
                "both out"
            )
        return
    if reference is Reference.ADAPTERS_OFF and training.lora is None:
        raise ConfigError(f"{KEY} is {reference}; the run has no adapters (training.lora): write {Reference.SEPARATE}")
    if layout.pipeline_parallel_size > 1:
        raise ConfigError(
            f"pipeline_parallel_size is {layout.pipeline_parallel_size} with {KEY}, which is not modelled; use 1"
        )
    if model.loss is Loss.FUSED_LINEAR:
        raise ConfigError(
            f"model.loss is {model.loss} with {KEY}; it makes no log-probability of a token: use {Loss.TORCH} or "
            f"{Loss.FUSED}"
        )
