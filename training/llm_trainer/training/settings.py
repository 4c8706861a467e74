"""Engine settings of a training configuration: precision, ranks, when to validate, save and log."""

from __future__ import annotations

import logging
import os
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import torch
from lightning_fabric.plugins.environments import SLURMEnvironment

from llm_trainer.config import TrainingConfig
from llm_trainer.exceptions import TrainingError
from model_training_framework.trainer import GenericTrainerConfig
from model_training_framework.trainer.config import KEPT_FOR_SAFETY

log = logging.getLogger(__name__)
MIXED = {"float16": "16-mixed", "bfloat16": "bf16-mixed"}


class Launched(NamedTuple):
    """The processes of a run, as whatever started this one says."""

    world_size: int
    nodes: int


def launched_ranks() -> Launched:
    """Return the processes of this run: torchrun's, Slurm's, or this one alone."""
    environment = os.environ
    if "WORLD_SIZE" in environment:
        world_size = int(environment["WORLD_SIZE"])
        return Launched(world_size, max(1, world_size // int(environment.get("LOCAL_WORLD_SIZE", world_size))))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The `srun` command is available on your system but is not used")
        is_slurm = SLURMEnvironment.detect()
    if is_slurm:
        return Launched(int(environment["SLURM_NTASKS"]), int(environment.get("SLURM_NNODES", "1")))
    return Launched(1, 1)


def ranks_of(config: TrainingConfig) -> Launched:
    """Return the processes of a configuration's run.

    Raises:
        TrainingError: another number was started than the configuration or its layout says.
    """
    launched = launched_ranks()
    if config.world_size not in (1, launched.world_size):
        raise TrainingError(
            f"world_size is {config.world_size}; {launched.world_size} processes were started. "
            f"Start it with torchrun --nproc-per-node {config.world_size}, or set world_size to 1"
        )
    model_parallel = config.tensor_parallel_size * config.pipeline_parallel_size
    if launched.world_size % model_parallel:
        raise TrainingError(
            f"tensor_parallel_size × pipeline_parallel_size is {model_parallel}; it must divide the number of "
            f"processes, {launched.world_size}. Start it with torchrun --nproc-per-node {model_parallel}, or a multiple"
        )
    return launched


def precision_of(config: TrainingConfig, device_type: str) -> str:
    """Return Fabric's name of a configuration's precision on a device.

    A CPU has no arithmetic for float16 that training could use, so the documented default trains in float32 there.
    """
    if not config.use_amp:
        return "32-true"
    return "32-true" if config.amp_dtype == "float16" and device_type == "cpu" else MIXED[config.amp_dtype]


def warn_of_precision(config: TrainingConfig, device_type: str) -> None:
    """Say where a run has another precision than its configuration asks for."""
    if config.use_amp and precision_of(config, device_type) == "32-true":
        log.warning(
            "amp_dtype is float16, which training on a CPU cannot use: training in float32. "
            "Set amp_dtype to bfloat16 for mixed precision here, or use_amp to false to silence this"
        )


def device_type_here() -> str:
    """Return the type of device that Fabric chooses by itself."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return accelerator.type if accelerator is not None and accelerator.type in ("cuda", "mps") else "cpu"


def engine_config(config: TrainingConfig, experiment_dir: str | Path, **changes: Any) -> GenericTrainerConfig:
    """Return the engine's settings of a configuration.

    Args:
        config: of the training.
        experiment_dir: folder of steps.jsonl, of event files, and of checkpoint_dir where that is relative.
        changes: engine's settings to replace.

    Raises:
        TrainingError: other processes were started than the configuration says.
        TrainerError: a changed setting is out of its range.
    """
    ranks = ranks_of(config)
    device_type = "cpu" if changes.get("accelerator") == "cpu" else device_type_here()
    validates_in_steps = config.eval_strategy == "steps"
    settings: dict[str, Any] = {
        "max_epochs": config.num_epochs,
        "max_steps": config.max_steps,
        "gradient_accumulation_steps": config.gradient_accumulation_steps,
        "max_grad_norm": config.max_grad_norm or None,
        "devices": ranks.world_size // ranks.nodes,
        "num_nodes": ranks.nodes,
        "precision": precision_of(config, device_type),
        "seed": config.seed,
        "experiment_dir": Path(experiment_dir),
        "checkpoint_dir": Path(config.checkpoint_dir),
        "resume_changes": tuple(config.resume_changes),
        "save_every_n_steps": config.save_steps or None,
        "save_every_n_epochs": None,
        "save_top_k": 0 if config.max_checkpoints else -1,
        "keep_last": max(KEPT_FOR_SAFETY, config.max_checkpoints),
        "validate_every_n_steps": config.eval_steps if validates_in_steps else None,
        "validate_every_n_epochs": None if validates_in_steps else 1,
        "log_every_n_steps": config.logging_steps,
        "tensorboard": "tensorboard" in config.report_to,
        "description": {"training": config.to_dict()},
    }
    return GenericTrainerConfig(**{**settings, **changes})
