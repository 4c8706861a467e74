"""Configuration of a trainer, apart from the model and its data."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from model_training_framework.config import ExperimentConfig
from model_training_framework.trainer.errors import TrainerError

PRECISIONS = {"fp32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}
KEPT_FOR_SAFETY = 2  # checkpoints: the last, and the one before in case the last is damaged
AT_LEAST_ONE = (
    "max_epochs", "max_steps", "gradient_accumulation_steps", "num_nodes", "save_every_n_steps", "save_every_n_epochs",
    "validate_every_n_steps", "validate_every_n_epochs", "log_every_n_steps",
)  # fmt: skip
ABOVE_ZERO = (
    "max_grad_norm", "save_every_n_minutes", "checkpoint_timeout_seconds", "grace_period_seconds",
    "rank_timeout_seconds",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class GenericTrainerConfig:
    """Settings of a run; ``from_experiment`` takes them from an experiment's sections.

    Attributes:
        max_epochs: passes over the data after which training ends; no limit where None.
        max_steps: optimizer steps after which it ends; no limit where None. One of the two is needed.
        gradient_accumulation_steps: batches of the loader per optimizer step.
        max_grad_norm: to which gradients are clipped; None: not at all.
        scheduler_interval: whether the scheduler advances with every optimizer step or epoch; one that takes a metric
            (ReduceLROnPlateau) gets ``monitor`` at every epoch's end.
        accelerator, devices, num_nodes, precision: as Lightning Fabric takes them.
        strategy: auto (one device, or DDP on several), ddp, or fsdp (fully_shard, FSDP2).
        seed: of everything random; None draws one, which checkpoints keep.
        deterministic: use torch's deterministic algorithms.
        benchmark: let cuDNN try which algorithm is the fastest.
        experiment_dir: folder of what is written; steps.jsonl is there.
        checkpoint_dir: folder of checkpoints; a relative one is in experiment_dir.
        resume: go on from the newest good checkpoint.
        resume_changes: names of what may differ from the checkpoint that a run goes on from, such as learning_rate or
            data; what else differs is refused.
        save_every_n_steps, save_every_n_epochs, save_every_n_minutes: when to save; the end is saved always.
        save_top_k: best checkpoints to keep beside the last ones; -1: all.
        keep_last: last checkpoints to keep: two at least, in case the last one is damaged.
        monitor, mode: metric that tells the best, and whether less (min) or more (max) is better.
        validate_every_n_steps: validate within epochs too.
        validate_every_n_epochs: validate at the end of every so many epochs; None: at the end of training alone.
        checkpoint_timeout_seconds: how long a rank waits for the others in a checkpoint.
        grace_period_seconds: from a signal to the end of the job.
        rank_timeout_seconds: how long a rank may stay in one phase of a batch, six times as long before its first step;
            then the run ends with status 75, and says which rank held it up, and where.
        log_every_n_steps: steps between two writes to logs; every step has its line all the same.
        progress_bar: on a terminal.
        tensorboard: write event files to experiment_dir/tensorboard.
        wandb: arguments of wandb.init; None: Weights & Biases is not used.
        health: write health/rank-00000.jsonl for every rank, which ``predictor watch`` reads.
        description: the experiment's configuration, for records.
    """

    max_epochs: int | None = None
    max_steps: int | None = None
    gradient_accumulation_steps: int = 1
    max_grad_norm: float | None = None
    scheduler_interval: Literal["step", "epoch"] = "step"
    accelerator: str = "auto"
    devices: int | str | list[int] = "auto"
    num_nodes: int = 1
    precision: str = "32-true"
    strategy: str = "auto"
    seed: int | None = 0
    deterministic: bool = True
    benchmark: bool = False
    experiment_dir: Path = Path()
    checkpoint_dir: Path = Path("checkpoints")
    resume: bool = True
    resume_changes: tuple[str, ...] = ()
    save_every_n_steps: int | None = None
    save_every_n_epochs: int | None = 1
    save_every_n_minutes: float | None = None
    save_top_k: int = 3
    keep_last: int = KEPT_FOR_SAFETY
    monitor: str | None = "val_loss"
    mode: Literal["min", "max"] = "min"
    validate_every_n_steps: int | None = None
    validate_every_n_epochs: int | None = 1
    checkpoint_timeout_seconds: float = 300.0
    grace_period_seconds: float = 60.0
    rank_timeout_seconds: float = 300.0
    log_every_n_steps: int = 10
    progress_bar: bool = True
    tensorboard: bool = False
    wandb: dict[str, Any] | None = None
    health: bool = True
    description: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check ranges, and take folders that are given as text.

        Raises:
            TrainerError: a value is out of its range, or nothing says when training ends.
        """
        for name in ("experiment_dir", "checkpoint_dir"):
            object.__setattr__(self, name, Path(getattr(self, name)))
        for names, least, rule in ((AT_LEAST_ONE, 1, "at least 1"), (ABOVE_ZERO, 1e-300, "greater than 0")):
            for name in names:
                value = getattr(self, name)
                if value is not None and not value >= least:
                    raise TrainerError(f"{name} is {value!r}; it must be {rule}")
        if self.keep_last < KEPT_FOR_SAFETY:
            raise TrainerError(f"keep_last is {self.keep_last}; it must be at least {KEPT_FOR_SAFETY}")
        if isinstance(self.resume_changes, str):
            raise TrainerError(f"resume_changes is {self.resume_changes!r}; expected names: ({self.resume_changes!r},)")
        for name, allowed in (("mode", ("min", "max")), ("scheduler_interval", ("step", "epoch"))):
            if getattr(self, name) not in allowed:
                raise TrainerError(f"{name} is {getattr(self, name)!r}; expected {' or '.join(allowed)}")
        if self.max_epochs is None and self.max_steps is None:
            raise TrainerError("max_epochs and max_steps are both None; give one, or training never ends")

    @property
    def checkpoint_folder(self) -> Path:
        """Return where checkpoints are."""
        return self.experiment_dir / self.checkpoint_dir

    @property
    def steps_file(self) -> Path:
        """Return where the lines of steps are."""
        return self.experiment_dir / "steps.jsonl"

    @classmethod
    def from_experiment(
        cls, config: ExperimentConfig, experiment_dir: str | Path = ".", **changes: Any
    ) -> GenericTrainerConfig:
        """Return the settings that an experiment's sections say.

        Args:
            config: the experiment.
            experiment_dir: its folder, where its config.yaml is.
            changes: settings to replace.

        Raises:
            TrainerError: the layout needs a trainer of its own, or a value is out of its range.
        """
        training, logging, saving = config.training, config.logging, config.checkpoint
        for name in ("tensor_parallel_size", "pipeline_parallel_size"):
            if getattr(training, name) > 1:
                raise TrainerError(
                    f"training.{name} is {getattr(training, name)}; this trainer replicates or shards the whole model: "
                    "set it to 1, or derive a trainer that overrides set_up_model()"
                )
        slurm = config.slurm
        settings: dict[str, Any] = {
            "max_epochs": training.epochs,
            "max_steps": training.max_steps,
            "gradient_accumulation_steps": training.gradient_accumulation_steps,
            "max_grad_norm": training.max_grad_norm,
            "devices": config.processes_per_node if slurm else "auto",
            "num_nodes": slurm.nodes if slurm else 1,
            "precision": PRECISIONS[training.precision],
            "strategy": "fsdp" if training.zero_stage else "auto",
            "seed": config.seed,
            "deterministic": config.deterministic,
            "benchmark": config.benchmark,
            "experiment_dir": Path(experiment_dir),
            "checkpoint_dir": Path(saving.checkpoint_dir),
            "resume_changes": tuple(saving.resume_changes),
            "save_every_n_steps": saving.save_every_n_steps,
            "save_every_n_epochs": saving.save_every_n_epochs,
            "save_top_k": saving.save_top_k,
            "monitor": saving.monitor,
            "mode": saving.mode,
            "checkpoint_timeout_seconds": 60.0 * config.preemption.timeout_minutes,
            "grace_period_seconds": config.preemption.grace_period_seconds,
            "rank_timeout_seconds": config.preemption.rank_timeout_seconds,
            "log_every_n_steps": logging.log_every_n_steps,
            "tensorboard": logging.use_tensorboard,
            "wandb": _wandb(config) if logging.use_wandb else None,
            "description": config.to_dict(),
        }
        return cls(**{**settings, **changes})


def _wandb(config: ExperimentConfig) -> dict[str, Any]:
    logging = config.logging
    return {
        "project": logging.wandb_project,
        "entity": logging.wandb_entity,
        "mode": logging.wandb_mode,
        "name": config.experiment_name,
        "tags": list(config.tags),
    }
