"""The sections of an experiment: every key with its range, its unit and its default.

Sections are immutable and closed: an unknown key is an error that names the nearest. Keys of one's own go into
``custom_params``, which is free.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from model_training_framework.config.fields import (
    Amount,
    AtLeastMinusOne,
    Count,
    Environment,
    FileOrKeys,
    Free,
    Line,
    Memory,
    NotNegative,
    Positive,
    Probability,
    Switch,
    TimeLimit,
    Word,
)
from model_training_framework.config.section import Section, section


@section("model")
class ModelConfig(Section):
    """The model. Sizes are those of a transformer; what has none of them cannot be predicted from its own sections."""

    name: Word = Field(description="what the training script calls it")
    hidden_size: Count | None = Field(default=None, description="width of the residual stream, elements")
    num_layers: Count | None = Field(default=None, description="layers")
    num_heads: Count | None = Field(default=None, description="attention heads; they divide hidden_size")
    dropout: Probability = Field(default=0.0, description="probability")
    vocab_size: Count | None = Field(default=None, description="tokens of the vocabulary")
    ffn_hidden_size: Count | None = Field(default=None, description="inner width of the FFN; 4 × hidden_size if absent")
    num_key_value_heads: Count | None = Field(default=None, description="heads of keys and values; all if absent")

    def __post_init__(self) -> None:
        """Check what two keys say together."""
        if self.hidden_size and self.num_heads and self.hidden_size % self.num_heads:
            raise ValueError(f"num_heads is {self.num_heads}: it must divide hidden_size, {self.hidden_size}")
        if self.num_heads and self.num_key_value_heads and self.num_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_key_value_heads is {self.num_key_value_heads}: it must divide num_heads, {self.num_heads}"
            )


@section("training")
class TrainingConfig(Section):
    """How long and how fast to train, and how the model is laid out over GPUs."""

    batch_size: Count = Field(description="samples per data-parallel rank and micro-batch")
    learning_rate: Positive = Field(description="at the end of the warm-up")
    epochs: Count | None = Field(default=None, description="passes over the training data; or give max_steps")
    gradient_accumulation_steps: Count = Field(default=1, description="micro-batches per step")
    max_grad_norm: Positive | None = Field(
        default=None, description="gradients are clipped to it; not at all if absent"
    )
    max_steps: Count | None = Field(default=None, description="steps (parameter updates) after which training ends")
    sequence_length: Count | None = Field(default=None, description="tokens per sample")
    precision: Literal["fp32", "bf16", "fp16"] = Field(default="fp32", description="element type of activations")
    tensor_parallel_size: Count = Field(default=1, description="ranks that split every layer")
    pipeline_parallel_size: Count = Field(default=1, description="pipeline stages")
    zero_stage: Annotated[int, Field(strict=True, ge=0, le=3)] = Field(
        default=0, description="replicas share out 1: optimizer states, 2: gradients too, 3: weights too (FSDP)"
    )

    def __post_init__(self) -> None:
        """Check that training ends."""
        if self.epochs is None and self.max_steps is None:
            raise ValueError("epochs is missing; give epochs or max_steps")


@section("data")
class DataConfig(Section):
    """The training data."""

    dataset_name: Word = Field(description="what the training script calls it")
    train_split: Word = Field(default="train", description="name of the split to train on")
    val_split: Word | None = Field(default=None, description="name of the split to validate on")
    test_split: Word | None = Field(default=None, description="name of the split to test on")
    preprocessing: Free = Field(default_factory=dict, description="free: the training script's own")
    num_samples: Count | None = Field(default=None, description="samples of the training split: one epoch")
    sequence_length: Count | None = Field(default=None, description="tokens per sample")


@section("optimizer")
class OptimizerConfig(Section):
    """The optimizer. Its learning rate is training.learning_rate."""

    name: Word = Field(description="adamw, adam, sgd, or what the training script calls it")
    weight_decay: NotNegative = Field(default=0.0, description="as the optimizer defines it")
    betas: tuple[Probability, Probability] = Field(default=(0.9, 0.999), description="decay of the moments (Adam)")
    eps: Positive = Field(default=1e-8, description="added to the denominator (Adam)")
    momentum: Probability = Field(default=0.0, description="decay of the velocity (SGD)")


@section("scheduler")
class SchedulerConfig(Section):
    """The learning rate over the steps."""

    name: Word = Field(description="cosine, linear, constant, or what the training script calls it")
    warmup_steps: Amount = Field(default=0, description="steps of linear warm-up")
    min_lr: NotNegative = Field(default=0.0, description="learning rate at the end")


@section("slurm")
class SLURMConfig(Section):
    """What a job asks Slurm for. An absent key leaves the decision to the site's own default."""

    job_name: Line | None = Field(default=None, description="the experiment's name if absent")
    time_limit: TimeLimit | None = Field(
        default=None, description='"1:30:00" as sbatch takes it; "auto": the prediction\'s upper bound'
    )
    nodes: Count = Field(default=1, description="nodes")
    ntasks_per_node: Count = Field(default=1, description="processes per node, one for each GPU")
    launcher: Literal["srun", "torchrun", "mpirun", "none"] = Field(
        default="srun", description="what starts the processes; none: the command, which runs once per job"
    )
    max_restarts: Amount = Field(default=0, description="of a node's processes by torchrun after one failed")
    cpus_per_task: Count | None = Field(default=None, description="CPU cores per process")
    mem: Memory | None = Field(default=None, description='memory per node, such as "32G"')
    gres: Line | None = Field(default=None, description='generic resources per node, such as "gpu:4"')
    partition: Line | None = Field(default=None, description="partition")
    additional_args: list[Line] = Field(default_factory=list, description="further options of sbatch, a word each")
    account: Line | None = Field(default=None, description="account that is charged")
    qos: Line | None = Field(default=None, description="quality of service")
    constraint: Line | None = Field(default=None, description="features that nodes must have")
    modules: list[Line] = Field(default_factory=list, description="environment modules to load")
    container: Line | None = Field(default=None, description="image that the command runs in")
    container_runtime: Literal["apptainer", "pyxis"] = Field(
        default="apptainer", description="apptainer exec, or srun --container-image of NVIDIA's Pyxis and Enroot"
    )
    environment: Environment = Field(default_factory=dict, description="environment variables of the job")
    setup: list[Line] = Field(default_factory=list, description="shell lines before the command")
    requeue: Switch = Field(default=True, description="a preempted job goes back to the queue")

    def __post_init__(self) -> None:
        """Check what two keys say together."""
        if self.max_restarts and self.launcher != "torchrun":
            raise ValueError(
                f"max_restarts is {self.max_restarts}: only torchrun restarts processes; set launcher to torchrun"
            )
        if self.container_runtime == "pyxis" and self.launcher not in ("srun", "torchrun"):
            raise ValueError(
                f"container_runtime is pyxis, a plugin of srun, and launcher is {self.launcher}; use apptainer"
            )


@section("logging")
class LoggingConfig(Section):
    """What a run says, and where. JSON lines are always written."""

    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"] = Field(
        default="INFO", description="least severity that is logged"
    )
    use_wandb: Switch = Field(default=False, description="log to Weights & Biases")
    wandb_project: Word | None = Field(default=None, description="its project")
    wandb_entity: Word | None = Field(default=None, description="its team or user")
    log_every_n_steps: Count = Field(default=10, description="steps between two log records")
    wandb_mode: Literal["online", "offline"] = Field(default="online", description="offline: files to sync later")
    use_tensorboard: Switch = Field(default=False, description="write TensorBoard event files")


@section("checkpoint")
class CheckpointConfig(Section):
    """When to save, and what to keep. The newest checkpoint is always kept."""

    save_every_n_epochs: Count | None = Field(default=1, description="epochs between two checkpoints")
    save_top_k: AtLeastMinusOne = Field(default=3, description="best checkpoints to keep; -1: all")
    monitor: Word | None = Field(default="val_loss", description="metric that tells the best; newest if absent")
    mode: Literal["min", "max"] = Field(default="min", description="whether less or more of it is better")
    checkpoint_dir: Word = Field(
        default="checkpoints", description="folder; a relative one is inside the experiment's own folder"
    )
    save_every_n_steps: Count | None = Field(default=None, description="steps between two checkpoints")
    resume_changes: list[Line] = Field(
        default_factory=list, description="settings that may differ from the checkpoint's, such as learning_rate"
    )


@section("preemption")
class PreemptionConfig(Section):
    """What a run does when its job is told to leave."""

    timeout_minutes: Positive = Field(default=5.0, description="longest time that saving may take")
    grace_period_seconds: Positive = Field(
        default=60.0, description="seconds between the signal and the end of the job"
    )
    rank_timeout_seconds: Positive = Field(
        default=300.0, description="longest that a rank may stand still before the run ends, to be resumed"
    )
    max_preemptions: Amount = Field(default=3, description="requeues after which the job stays down")


@section("performance")
class PerformanceConfig(Section):
    """How data is loaded, as torch.utils.data.DataLoader takes it."""

    num_workers: Amount = Field(default=0, description="processes that load data")
    pin_memory: Switch = Field(default=False, description="batches in page-locked memory")
    prefetch_factor: Count | None = Field(default=None, description="batches per worker in advance; needs workers")
    persistent_workers: Switch = Field(default=False, description="workers outlive an epoch; needs workers")


@section("prediction")
class PredictionConfig(Section):
    """What a prediction needs beyond the experiment's own sections."""

    system: Word | None = Field(default=None, description="published system, by name, or by folder in the project")
    config: FileOrKeys | None = Field(
        default=None, description="configuration of the predictor, on top of what the own sections say"
    )
    price_per_gpu_hour: NotNegative | None = Field(default=None, description="in any currency")
