"""Check the optimizer against adapters, offloading and the framework."""

from __future__ import annotations

from predictor.core.base.errors import ConfigError
from predictor.core.schema.parallelism import ParallelismSection
from predictor.core.schema.sections import TrainingSection
from predictor.core.workload.run_choices import Optimizer
from predictor.core.workload.software import ON_DEEPSPEED


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
