"""Check the keys of recomputation against each other."""

from __future__ import annotations

from predictor.core.base.errors import ConfigError
from predictor.core.schema.model_section import ModelSection
from predictor.core.schema.sections import TrainingSection
from predictor.core.workload.run_choices import Recompute, RecomputeModule

OF_EXPERTS = (RecomputeModule.MOE, RecomputeModule.MOE_ACTIVATION, RecomputeModule.SHARED_EXPERTS)


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
