"""Trainer: the documented face of the engine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from itertools import islice
from pathlib import Path
from typing import Any, Self

import torch
from torch import nn
from torch.utils.data import Dataset

from llm_trainer.config import DataConfig, ModelConfig, TrainingConfig
from llm_trainer.data import create_dataloader
from llm_trainer.exceptions import TrainingError
from llm_trainer.models import TransformerLM
from llm_trainer.tokenizer import BPETokenizer
from llm_trainer.training.batches import model_inputs, num_targets
from llm_trainer.training.console import ConsoleLog, CsvLog, Outcome, metrics_of
from llm_trainer.training.engine import Engine
from llm_trainer.training.length import run_length, warn_of_warmup
from llm_trainer.training.make_engine import is_replicated, make_engine
from llm_trainer.training.scheduler import create_scheduler
from llm_trainer.training.settings import ranks_of
from llm_trainer.training.utils import get_device
from model_training_framework.trainer import ResumeState, TrainerError, TrainingCallback
from model_training_framework.trainer.checkpoint import SHARED
from model_training_framework.trainer.checkpoint_files import read_part
from model_training_framework.trainer.checkpoint_store import MANIFEST
from model_training_framework.trainer.snapshot import load_weights

TRAINING_FILE = "training_config.json"
# A run that goes on may change these: they decide when it ends and what is written, not what a step does.
FREE_TO_CHANGE = {
    "num_epochs", "max_steps", "save_steps", "max_checkpoints", "checkpoint_dir", "eval_steps", "eval_strategy",
    "logging_steps", "report_to", "dataloader_num_workers", "world_size", "local_rank", "compile_model",
    "resume_changes",
}  # fmt: skip


class Trainer:
    """Trains a language model, evaluates it and lets it write.

    Everything that a run writes is in ``config.checkpoint_dir``: checkpoints, steps.jsonl with a line for every step,
    and event files for TensorBoard. A run that was stopped, by whatever, goes on from its last checkpoint when
    ``train`` is called again, and its losses are bit by bit those of a run that was not.

    Attributes:
        model: in training and after it the same object, on the run's device.
        tokenizer: of its texts.
        config: how to train.
        train_dataset, eval_dataset: samples; None: ``train_from_config`` makes them.
        metrics: of the last evaluation.
        engine: what trains, once ``train`` was called.
    """

    def __init__(
        self,
        model: TransformerLM,
        tokenizer: BPETokenizer,
        config: TrainingConfig,
        train_dataset: Dataset[Any] | None = None,
        eval_dataset: Dataset[Any] | None = None,
    ) -> None:
        """Take a model and what it is trained with.

        Raises:
            ModelConfigurationError: a value of the configuration is not allowed.
        """
        config.validate()
        self.model = model
        self.tokenizer = tokenizer
        self.config = config
        self.train_dataset = train_dataset
        self.eval_dataset = eval_dataset
        self.metrics: dict[str, float] = {}
        self.engine: Engine | None = None
        self._num_workers = config.dataloader_num_workers or 0
        self._resume_from: Path | None = None
        self._callbacks: list[TrainingCallback] = []

    @property
    def device(self) -> torch.device:
        """Return where the model is: during and after training the run's device."""
        return next(self.model.parameters()).device

    @property
    def is_first_rank(self) -> bool:
        """Return whether this is the rank that writes and speaks; before training every rank thinks so."""
        return self.engine is None or bool(self.engine.fabric.is_global_zero)

    @property
    def data_parallel_size(self) -> int:
        """Return how many of the started ranks see different samples.

        Raises:
            TrainingError: other processes were started than the configuration says.
        """
        config = self.config
        return ranks_of(config).world_size // (config.tensor_parallel_size * config.pipeline_parallel_size)

    @property
    def effective_batch_size(self) -> int:
        """Return the samples of an optimizer step, over all ranks that were started."""
        return self.config.batch_size * self.config.gradient_accumulation_steps * self.data_parallel_size

    def add_callback(self, callback: TrainingCallback) -> None:
        """Add a callback of the framework; hooks are called in the order of adding."""
        self._callbacks.append(callback)

    def train(self) -> dict[str, float]:
        """Train to the end, from the last checkpoint in ``config.checkpoint_dir`` where there is one.

        Returns:
            train_loss, the mean over the last epoch's steps, and the metrics of the last evaluation.

        Raises:
            TrainingError: there are no data, the run cannot start or go on, or the checkpoint is of another run.
            SystemExit: with status 75 after SIGUSR1 or SIGTERM; the next start goes on.
        """
        return self._run(self.config.num_epochs)

    def train_from_config(self, model_config: ModelConfig, data_config: DataConfig) -> dict[str, float]:
        """Make samples of the texts that a configuration names, and train; returns and raises as ``train``.

        Args:
            model_config: of this trainer's model.
            data_config: texts, and how they become samples.

        Raises:
            TrainingError: the model is another one.
            DataError: the texts cannot be read.
        """
        from llm_trainer.training.datasets import make_datasets

        for field in fields(model_config):
            asked, here = getattr(model_config, field.name), getattr(self.model.config, field.name)
            if asked != here:
                raise TrainingError(
                    f"model_config.{field.name} is {asked!r}; the model's is {here!r}. Build it from this one"
                )
        folder = Path(self.config.checkpoint_dir) / "data"
        self.train_dataset, self.eval_dataset = make_datasets(data_config, self.tokenizer, folder)
        if self.config.dataloader_num_workers is None:
            self._num_workers = data_config.dataloader_num_workers
        return self.train()

    def evaluate(self, max_batches: int | None = None) -> dict[str, float]:
        """Return val_loss, the mean cross entropy in nats per token of ``eval_dataset``, and val_perplexity.

        Args:
            max_batches: after which it ends; None: all.

        Raises:
            TrainingError: there is no ``eval_dataset``, or no token to predict.
        """
        return self._evaluate(max_batches)

    def generate_text(self, prompt: str, max_length: int = 100, **kwargs: Any) -> str:
        """Return a prompt's continuation by the model as it is.

        Args:
            prompt: the beginning.
            max_length: of prompt and continuation, in tokens.
            kwargs: other fields of ``llm_trainer.utils.generation.GenerationConfig``.

        Raises:
            GenerationError: a field is unknown or out of its range, or the prompt is too long.
            TrainingError: the model is split over ranks.
        """
        config = self.config
        if self.engine is not None and config.tensor_parallel_size * config.pipeline_parallel_size > 1:
            raise TrainingError(
                "the model is split over tensor or pipeline ranks; save_model() it on all of them, and generate from "
                "the folder in one process"
            )
        from llm_trainer.utils.generation import GenerationConfig, TextGenerator

        generator = TextGenerator(self.model, self.tokenizer, self.device)
        return generator.generate(prompt, GenerationConfig(max_length=max_length, **kwargs))

    def save_model(self, save_path: str | Path) -> None:
        """Write model, tokenizer and training configuration to a folder; with several ranks, call it on all.

        Raises:
            TrainingError: the folder cannot be written.
        """
        model = self.engine.whole_model() if self.engine is not None else self.model
        if model is None:  # another rank writes
            return
        folder = Path(save_path)
        try:
            model.save_pretrained(folder)
            self.tokenizer.save_pretrained(folder)
            self.config.save(folder / TRAINING_FILE)
        except OSError as error:
            raise TrainingError(f"{folder} cannot be written: {error.strerror or error}") from error

    @classmethod
    def from_pretrained(
        cls, model_path: str | Path, tokenizer_path: str | Path | None = None, config: TrainingConfig | None = None
    ) -> Self:
        """Return a trainer of a saved model.

        Args:
            model_path: folder that ``save_model`` wrote.
            tokenizer_path: the tokenizer's; None: the model's.
            config: how to train; None: as the folder says, or the defaults.

        Raises:
            ModelConfigurationError: files of the model are missing or damaged.
            DataError: the tokenizer cannot be read.
        """
        folder = Path(model_path)
        model = TransformerLM.from_pretrained(folder)
        tokenizer = BPETokenizer.from_pretrained(folder if tokenizer_path is None else tokenizer_path)
        if config is None:
            path = folder / TRAINING_FILE
            config = TrainingConfig.load(path) if path.is_file() else TrainingConfig()
        return cls(model, tokenizer, config)

    def _run(self, num_epochs: int) -> dict[str, float]:
        """Train up to a number of epochs of the run."""
        if self.train_dataset is None:
            raise TrainingError("train_dataset is None; give Trainer one, or call train_from_config(…)")
        length = run_length(self.config, len(self.train_dataset), self.data_parallel_size)
        warn_of_warmup(self.config, length)
        with _as_training_errors():
            engine = self._make_engine(num_epochs)
            outcome = Outcome()
            for callback in (outcome, *self._callbacks):
                engine.add_callback(callback)
            tokens_per_step = self.effective_batch_size * len(self.train_dataset[0]["input_ids"])
            engine.add_logger(ConsoleLog(self.config.logging_steps, tokens_per_step, length.num_steps))
            if "csv" in self.config.report_to:
                engine.add_logger(CsvLog(Path(self.config.checkpoint_dir) / "steps.csv"))
            if self._resume_from is not None:
                engine.load_checkpoint(self._resume_from)
            optimizer = engine.make_optimizer(self.model)
            scheduler = create_scheduler(
                optimizer, self.config.lr_scheduler, length.num_steps, length.warmup_steps, self.config.min_lr_ratio
            )
            train_loader = self._loader(self.train_dataset, shuffle=True, drop_last=length.drop_last)
            has_evaluation = self.eval_dataset is not None and self.config.eval_strategy != "no"
            val_loader = self._loader(self.eval_dataset) if has_evaluation else None
            self.engine = engine
            engine.fit(self.model, optimizer, train_loader, val_loader, scheduler)
        self._resume_from = None
        if "val_loss" in engine.metrics:
            self.metrics = metrics_of(engine.metrics["val_loss"])
        return outcome.losses | self.metrics

    def _train_epoch(self) -> dict[str, float]:
        """Train to the end of the first epoch that is not complete; returns and raises as ``train``."""
        with _as_training_errors():
            engine = self._make_engine(self.config.num_epochs)
            state = engine.load_checkpoint(self._resume_from) if self._resume_from else engine.newest_state()
        return self._run(min(self.config.num_epochs, 1 + (state.epoch if state is not None else 0)))

    def _evaluate(self, max_batches: int | None = None) -> dict[str, float]:
        """Return what ``evaluate`` returns."""
        if self.eval_dataset is None:
            raise TrainingError("eval_dataset is None; give Trainer one, or name validation texts in data_config")
        is_set_up = self.engine is not None and self.engine.model is not None
        if not is_set_up:
            self.model.to(get_device())
        total = tokens = 0.0
        with torch.no_grad(), _inference(self.model):
            for number, batch in enumerate(islice(self._loader(self.eval_dataset), max_batches)):
                here = {name: value.to(self.device) for name, value in batch.items()}
                if is_set_up and self.engine is not None:
                    loss = self.engine.validation_step(here, number)["loss"]
                else:
                    loss = self.model(**model_inputs(here)).loss
                weight = num_targets(here)
                if weight:  # the mean over no target is not a number
                    total += weight * float(loss)
                    tokens += weight
        if not tokens:
            raise TrainingError("no batch has a token to predict; give more texts, or max_batches of at least 1")
        self.metrics = metrics_of(total / tokens)
        return dict(self.metrics)

    def _save_checkpoint(self) -> Path:
        """Save a checkpoint, within training from a callback, or after it; return its folder.

        Raises:
            TrainingError: training has not begun, is within a step, or the disk is full.
        """
        if self.engine is None:
            raise TrainingError("there is nothing to resume before train(); save_model() writes the weights")
        with _as_training_errors():
            return self.engine.save_checkpoint()

    def _load_checkpoint(self, path: str | Path | None = None) -> ResumeState:
        """Put a checkpoint's weights into the model, unless ranks share it; ``train`` goes on from there.

        Args:
            path: of a checkpoint, or of a folder of them, whose newest is taken; None: ``config.checkpoint_dir``.

        Raises:
            TrainingError: there is none, it is damaged, or it is of another model.
        """
        place = Path(self.config.checkpoint_dir if path is None else path).absolute()
        with _as_training_errors():
            is_checkpoint = (place / MANIFEST).is_file()
            folder = place.parent if is_checkpoint else place
            engine = make_engine(self.config, folder, checkpoint_dir=Path())
            state = engine.load_checkpoint(place if is_checkpoint else None)
            self._resume_from = engine.resume_path
            if is_replicated(self.config) and self._resume_from is not None:
                load_weights(self.model, read_part(self._resume_from / SHARED)["model"])
        return state

    def _make_engine(self, num_epochs: int) -> Engine:
        """Return an engine that writes to ``config.checkpoint_dir``."""
        engine = make_engine(
            self.config,
            Path(self.config.checkpoint_dir),
            checkpoint_dir=Path(),
            max_epochs=num_epochs,
            progress_bar=not ConsoleLog.is_shown(),
        )
        engine.identity = self._identity()
        return engine

    def _identity(self) -> dict[str, Any]:
        """Return what decides a step: the model, the training and the number of samples."""
        training = {key: value for key, value in self.config.to_dict().items() if key not in FREE_TO_CHANGE}
        model = {key: value for key, value in self.model.config.to_dict().items() if key != "gradient_checkpointing"}
        return {**model, **training, "number of samples": len(self.train_dataset or ())}

    def _loader(self, dataset: Dataset[Any] | None, shuffle: bool = False, drop_last: bool = False) -> Any:
        assert dataset is not None
        return create_dataloader(
            dataset, self.config.batch_size, shuffle, self._num_workers, pin_memory=True, drop_last=drop_last
        )


@contextmanager
def _inference(model: nn.Module) -> Iterator[None]:
    """Set a model to evaluation, and back."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, is_training in modes:
            module.training = is_training


@contextmanager
def _as_training_errors() -> Iterator[None]:
    """Turn the framework's errors, and a device's lack of memory, into TrainingError.

    Raises:
        TrainingError: with the same line.
    """
    try:
        yield
    except TrainerError as error:
        raise TrainingError(str(error)) from error
    except torch.OutOfMemoryError as error:
        raise TrainingError(
            f"{str(error).splitlines()[0]} Lower batch_size and raise gradient_accumulation_steps, or set "
            "gradient_checkpointing or a zero_stage"
        ) from error
