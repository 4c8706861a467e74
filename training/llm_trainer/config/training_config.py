"""Training configuration: batch, learning rate, precision, checkpoints, and the layout over ranks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from llm_trainer.config.section import Section

SCHEDULERS = ("cosine", "linear", "constant", "polynomial")
OPTIMIZERS = ("adamw", "adam", "sgd")
AMP_DTYPES = ("float16", "bfloat16")
STRATEGIES = ("no", "steps", "epoch")
REPORTERS = ("tensorboard", "csv", "none")
PIPELINE_SCHEDULES = ("1f1b", "interleaved_1f1b", "zero_bubble_h1")


@dataclass
class TrainingConfig(Section):
    """How a model is trained.

    Attributes:
        batch_size: samples per device and micro-batch.
        learning_rate: at its peak.
        weight_decay: of matrices; biases and normalisation weights have none.
        num_epochs: passes over the data.
        max_steps: updates of the weights; None: as many as the epochs have.
        lr_scheduler: cosine, linear, constant or polynomial, after the warm-up.
        warmup_steps: updates until the peak; 0: warmup_ratio says.
        warmup_ratio: of all updates, where warmup_steps is 0.
        min_lr_ratio: of the peak, at the end.
        optimizer: adamw, adam or sgd.
        max_grad_norm: gradients are clipped to it; 0: not at all.
        gradient_accumulation_steps: micro-batches per update; with pipeline parallelism those of the pipeline.
        use_amp: mixed precision.
        amp_dtype: float16 (with a scaled loss) or bfloat16.
        save_steps: updates between checkpoints; 0: none but the last.
        checkpoint_dir: folder of the checkpoints.
        max_checkpoints: kept, the newest; 0: all.
        eval_steps: updates between evaluations.
        eval_strategy: no, steps or epoch.
        logging_steps: updates between two lines of the log.
        report_to: tensorboard, csv, none.
        world_size: processes of the run; 1: as many as the launcher starts.
        local_rank: of this process on its node; -1: as the launcher says.
        dataloader_num_workers: in place of the data's own; None: the data's own.
        compile_model: with torch.compile.
        betas: decay of Adam's two moments.
        eps: added to Adam's denominator.
        seed: of weights, dropout and order of the data.
        tensor_parallel_size: ranks that share every layer.
        pipeline_parallel_size: ranks that hold consecutive layers.
        zero_stage: 0: DistributedDataParallel; 1: optimizer states sharded; 2: and gradients; 3: and parameters.
        pipeline_schedule: 1f1b, interleaved_1f1b or zero_bubble_h1.
        num_chunks: stages per pipeline rank.
        resume_changes: fields that may differ from the checkpoint that a run goes on from.
    """

    batch_size: int = 32
    learning_rate: float = 1e-4
    weight_decay: float = 0.01
    num_epochs: int = 10
    max_steps: int | None = None
    lr_scheduler: str = "cosine"
    warmup_steps: int = 1000
    warmup_ratio: float = 0.1
    min_lr_ratio: float = 0.1
    optimizer: str = "adamw"
    max_grad_norm: float = 1.0
    gradient_accumulation_steps: int = 1
    use_amp: bool = True
    amp_dtype: str = "float16"
    save_steps: int = 1000
    checkpoint_dir: str = "./checkpoints"
    max_checkpoints: int = 5
    eval_steps: int = 500
    eval_strategy: str = "steps"
    logging_steps: int = 100
    report_to: list[str] = field(default_factory=lambda: ["tensorboard"])
    world_size: int = 1
    local_rank: int = -1
    dataloader_num_workers: int | None = None
    compile_model: bool = False
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    seed: int = 42
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    zero_stage: int = 0
    pipeline_schedule: str = "1f1b"
    num_chunks: int = 1
    resume_changes: list[str] = field(default_factory=list)

    @property
    def data_parallel_size(self) -> int:
        """Replicas: what tensor and pipeline ranks leave of the world."""
        return max(1, self.world_size // (self.tensor_parallel_size * self.pipeline_parallel_size))

    @property
    def effective_batch_size(self) -> int:
        """Samples per update, over all devices."""
        return self.batch_size * self.gradient_accumulation_steps * self.data_parallel_size

    def validate(self) -> None:
        """Check every field.

        Raises:
            ModelConfigurationError: a value is not allowed, or does not fit another.
        """
        self._whole("batch_size", "num_epochs", "gradient_accumulation_steps", "world_size", "eval_steps")
        self._whole("logging_steps", "tensor_parallel_size", "pipeline_parallel_size", "num_chunks")
        self._whole("warmup_steps", "save_steps", "max_checkpoints", "seed", "zero_stage", least=0)
        self._whole("local_rank", least=-1)
        for name, least in (("max_steps", 1), ("dataloader_num_workers", 0)):
            if getattr(self, name) is not None:
                self._whole(name, least=least)
        self._real("learning_rate", "weight_decay", "max_grad_norm", "eps")
        self._real("warmup_ratio", "min_lr_ratio", most=1.0)
        self._choice("lr_scheduler", SCHEDULERS)
        self._choice("optimizer", OPTIMIZERS)
        self._choice("amp_dtype", AMP_DTYPES)
        self._choice("eval_strategy", STRATEGIES)
        self._choice("pipeline_schedule", PIPELINE_SCHEDULES)
        self._flag("use_amp", "compile_model")
        self._text("checkpoint_dir")
        self._lists()
        self._layout()

    def _lists(self) -> None:
        """Check fields of several values; a single reporter is a list of itself."""
        reporters: Any = self.report_to
        if isinstance(reporters, str):
            reporters = [reporters]
        if not isinstance(reporters, list | tuple) or not all(name in REPORTERS for name in reporters):
            raise self._refuse("report_to", f"expected a list of {', '.join(REPORTERS)}")
        betas: Any = self.betas
        if (
            not isinstance(betas, list | tuple)
            or len(betas) != 2
            or not all(type(beta) in (int, float) and 0 <= beta < 1 for beta in betas)
        ):
            raise self._refuse("betas", "expected two numbers from 0 to under 1")
        changes: Any = self.resume_changes
        if not isinstance(changes, list | tuple) or not all(isinstance(name, str) for name in changes):
            raise self._refuse("resume_changes", "expected a list of names, such as ['learning_rate']")
        self.report_to, self.betas = list(reporters), (betas[0], betas[1])

    def _layout(self) -> None:
        """Check that the axes fill the world and fit each other."""
        if self.zero_stage > 3:
            raise self._refuse("zero_stage", "expected 0, 1, 2 or 3")
        model_parallel = self.tensor_parallel_size * self.pipeline_parallel_size
        if self.world_size > 1 and self.world_size % model_parallel:
            raise self._refuse(
                "world_size",
                f"tensor_parallel_size × pipeline_parallel_size, {model_parallel}, must divide it. "
                f"Try {model_parallel} or a multiple",
            )
        if self.num_chunks > 1 and (self.pipeline_parallel_size == 1 or self.pipeline_schedule == "1f1b"):
            raise self._refuse(
                "num_chunks", "several stages per rank need pipeline_parallel_size over 1 and an interleaved schedule"
            )
        if self.pipeline_schedule == "interleaved_1f1b" and self.num_chunks == 1:
            raise self._refuse("pipeline_schedule", "num_chunks is 1; interleaving needs at least 2. Try num_chunks 2")
