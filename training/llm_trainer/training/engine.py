"""The training step of a language model on GenericTrainer, for one rank and for replicas (DDP)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from llm_trainer.config import TrainingConfig
from llm_trainer.models.operators import operator
from llm_trainer.training.optimizer import create_optimizer
from llm_trainer.training.settings import engine_config, warn_of_precision
from model_training_framework.trainer import GenericTrainer

INPUTS = ("input_ids", "attention_mask", "labels")


class Engine(GenericTrainer):
    """Trains a language model: one optimizer step after another, checkpoints and resume are the base class's.

    A batch is a mapping with ``input_ids`` and ``labels``, (batch, sequence) tokens, not shifted; ``attention_mask``
    where there is padding. Layouts over several ranks derive from it: ``set_up_model`` and ``forward_backward`` are
    theirs to override.

    Attributes:
        training_config: what ``config``, the base class's, is made of.
    """

    def __init__(self, training_config: TrainingConfig, experiment_dir: str | Path = ".", **changes: Any) -> None:
        """Prepare the engine; nothing is started before ``fit``.

        Args:
            training_config: how to train.
            experiment_dir: folder of what is written.
            changes: fields of GenericTrainerConfig to replace.

        Raises:
            TrainingError: other processes were started than the configuration says.
            TrainerError: the devices, the precision or the strategy cannot be had.
        """
        self.training_config = training_config
        super().__init__(engine_config(training_config, experiment_dir, **changes))
        warn_of_precision(training_config, self.fabric.device.type)

    def make_optimizer(self, model: nn.Module) -> Optimizer:
        """Return the configuration's optimizer of a model's weights."""
        config = self.training_config
        is_scaled_and_clipped = self.config.precision == "16-mixed" and self.config.max_grad_norm is not None
        return create_optimizer(
            model,
            config.optimizer,
            config.learning_rate,
            config.weight_decay,
            config.betas,
            config.eps,
            fused=False if is_scaled_and_clipped else None,
        )

    def set_up_model(self, model: nn.Module, optimizer: Optimizer) -> tuple[Any, Any]:
        """Return model and optimizer on their device, replicated where there are several ranks."""
        if self.training_config.compile_model:
            model.compile()
        return super().set_up_model(model, optimizer)

    def inputs(self, batch: Any) -> dict[str, Tensor]:
        """Return the model's arguments of a batch; the tokens are the labels where it has none."""
        if not isinstance(batch, Mapping):
            batch = {"input_ids": batch[0] if isinstance(batch, list | tuple) else batch}
        arguments = {name: batch[name] for name in INPUTS if batch.get(name) is not None}
        return {"labels": arguments["input_ids"], **arguments}

    def training_step(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        """Return the mean cross entropy of a batch's next tokens."""
        return {"loss": self.model(**self.inputs(batch)).loss}

    def validation_step(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        """Return the mean cross entropy of a batch's next tokens."""
        return {"loss": self.model(**self.inputs(batch)).loss}

    def update(self) -> None:
        """Clip the gradients, step the optimizer and drop the gradients."""
        if self.config.max_grad_norm is not None:
            with operator("gradient_clipping"):
                self.clip_gradients(self.config.max_grad_norm)
        with operator("optimizer_step"):
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def clip_gradients(self, max_norm: float) -> None:
        """Scale the gradients down to a norm, over all weights."""
        self.fabric.clip_gradients(self.model, self.optimizer, max_norm=max_norm, error_if_nonfinite=False)
