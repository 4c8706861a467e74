"""Rules of the section ``training``: lengths of samples, the reference of preference learning, the optimizer."""

from __future__ import annotations

from dataclasses import replace

from predictor.core.base.errors import ConfigError
from predictor.core.schema.model_section import ModelSection
from predictor.core.schema.parallelism import ParallelismSection
from predictor.core.schema.sections import TrainingSection
from predictor.core.workload.run_choices import Optimizer, Recompute, RecomputeModule, Reference
from predictor.core.workload.software import ON_DEEPSPEED
from predictor.core.workload.switches import Loss
from predictor.core.workload.transformer import Transformer

OF_EXPERTS = (RecomputeModule.MOE, RecomputeModule.MOE_ACTIVATION, RecomputeModule.SHARED_EXPERTS)
KEY = "training.reference_model"


def check_recomputation(training: TrainingSection, model: ModelSection) -> None:
    """Refuse keys that contradict ``training.recompute``, and modules that the model does not have.

    Raises:
        ConfigError: they do.
    """
    mode, count, every = training.recompute, training.recompute_num_layers, training.recompute_every
    if mode is Recompute.NONE and (count is not None or every > 1 or training.recompute_modules):
        key = "recompute_num_layers" if count is not None else "recompute_every" if every > 1 else "recompute_modules"
        raise ConfigError(f"training.{key} is given and recompute is none; name what is recomputed, or leave it out")
    if count is not None and every > 1:
        raise ConfigError("training has recompute_num_layers and recompute_every; both choose layers, so leave one out")
    group = training.recompute_group_layers
    if group > 1 and (mode is not Recompute.FULL or count is not None or every > 1):
        raise ConfigError(
            f"training.recompute_group_layers is {group}; it needs recompute: full of all layers, without "
            "recompute_num_layers and recompute_every"
        )
    if training.recompute_modules and mode is not Recompute.SELECTIVE:
        raise ConfigError(f"training.recompute_modules is given and recompute is {mode}; it needs selective")
    for module in training.recompute_modules:
        if module in OF_EXPERTS and model.moe is None:
            raise ConfigError(f"training.recompute_modules names {module}; the model has no experts (model.moe)")
        if module is RecomputeModule.MLA_UP_PROJECTION and model.latent_attention is None:
            raise ConfigError(
                f"training.recompute_modules names {module}; the model has no latent attention (model.latent_attention)"
            )


def with_lengths(model: Transformer, training: TrainingSection) -> Transformer:
    """Return a model over samples of their mean length, whose attention stays inside documents.

    All samples and all documents count as long as the mean one; where lengths differ attention takes longer.

    Raises:
        ConfigError: one is longer than the sequence.
    """
    for key in ("document_tokens", "mean_sequence_length"):
        given = getattr(training, key)
        if given is not None and given > model.sequence_length:
            raise ConfigError(
                f"training.{key} is {given}; model.sequence_length is {model.sequence_length}, and no sample is longer"
            )
    if training.document_tokens is not None and training.mean_sequence_length is not None:
        raise ConfigError(
            "training has document_tokens and mean_sequence_length; packed samples are full, so leave one out"
        )
    if training.document_tokens is not None:
        return replace(model, document_tokens=training.document_tokens)
    if training.mean_sequence_length is None:
        return model
    rows = model.num_position_embeddings or model.sequence_length
    return replace(model, sequence_length=training.mean_sequence_length, num_position_embeddings=rows)


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


def check_optimizer(training: TrainingSection, parallelism: ParallelismSection) -> None:
    """Refuse Muon where it is not modelled.

    Raises:
        ConfigError: adapters train, states are in host memory, or DeepSpeed shares out weights or nothing.
    """
    if training.optimizer is not Optimizer.MUON:
        return
    for key in ("lora", "offload_optimizer", "offload_parameters"):
        if getattr(training, key):
            raise ConfigError(f"training.optimizer is muon with training.{key}, which is not modelled; use adam")
    if training.framework not in ON_DEEPSPEED:
        return
    if parallelism.zero_stage == 0:  # only the optimizers of ZeRO call its update, MuonWithAuxAdam.step() does not
        raise ConfigError("training.optimizer is muon: DeepSpeed has it with zero_stage 1 to 3, without it runs SGD")
    if parallelism.zero_stage == 3:
        raise ConfigError("training.optimizer is muon: of DeepSpeed it is modelled with zero_stage 1 and 2; use adam")
