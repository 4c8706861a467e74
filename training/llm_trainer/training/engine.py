"""The training step of a language model on GenericTrainer, for one rank and for replicas (DDP)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from llm_trainer.config import TrainingConfig
from llm_trainer.models import TransformerLM
from llm_trainer.training.batches import model_inputs, num_targets
from llm_trainer.training.optimizer import create_optimizer
from llm_trainer.training.settings import engine_config, warn_of_precision
from model_training_framework.trainer import GenericTrainer, ResumeState
from model_training_framework.trainer.checkpoint import Snapshot, read_state
from model_training_framework.trainer.checkpoint_store import CheckpointStore
from model_training_framework.trainer.operator_scopes import operator
from predictor.core.base.allocator import keep_freed_memory


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

    def fit(self, *args: Any, **kwargs: Any) -> None:
        """Train to the end; see the base class."""
        warn_of_precision(self.training_config, self.fabric.device.type)
        if self.fabric.device.type == "cpu":
            keep_freed_memory()
        super().fit(*args, **kwargs)

    def set_up_model(self, model: nn.Module, optimizer: Optimizer) -> tuple[Any, Any]:
        """Return model and optimizer on their device, replicated where there are several ranks."""
        if self.training_config.compile_model:
            model.compile()
        model, optimizer = super().set_up_model(model, optimizer)
        if self.config.precision != "32-true":
            self._keep_outputs(model)
        return model, optimizer

    def _keep_outputs(self, model: Any) -> None:
        """Leave a forward pass's outputs in mixed precision: Fabric would copy all logits to float32 for nobody."""
        inner = model._forward_module

        def forward(*args: Any, **kwargs: Any) -> Any:
            with self.fabric.autocast():
                return inner(*args, **kwargs)

        model.__dict__["forward"] = forward

    def inputs(self, batch: Any) -> dict[str, Tensor]:
        """Return the model's arguments of a batch."""
        return model_inputs(batch)

    def training_step(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        """Return the mean cross entropy of a batch's next tokens."""
        return {"loss": self.model(**self.inputs(batch)).loss}

    def validation_step(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        """Return the mean cross entropy of a batch's next tokens."""
        return {"loss": self.model(**self.inputs(batch)).loss}

    def validation_weight(self, batch: Any) -> int:
        """Return how many tokens a validation batch predicts: val_loss is a mean over tokens."""
        return num_targets(batch)

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

    def whole_model(self) -> TransformerLM | None:
        """Return the trained model with all of its weights, on rank 0, and None elsewhere; call it on every rank."""
        return self.module if self.fabric.is_global_zero else None

    @property
    def resume_path(self) -> Path | None:
        """Return the checkpoint that ``load_checkpoint`` chose before ``fit``."""
        return self._resume_from

    def newest_state(self) -> ResumeState | None:
        """Return where ``fit`` would go on; None where it would begin."""
        stored = CheckpointStore.of(self.config).newest_good()
        return read_state(stored) if stored is not None else None

    def stored_identity(self, content: Snapshot) -> dict[str, Any] | None:
        """Return what decided the steps of a checkpoint's run, also of checkpoints that kept it elsewhere."""
        return super().stored_identity(content) or content.shared["trainer"].get("identity")
