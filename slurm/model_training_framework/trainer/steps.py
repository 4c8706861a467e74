"""Default training step: a loss where the model returns one, otherwise the method to override."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn import functional

from model_training_framework.trainer.errors import TrainerError


def default_loss(model: Any, batch: Any) -> Any:
    """Return the loss of a batch.

    (inputs, targets): cross entropy for classes (integers), mean squared error for values of the outputs' shape. A
    mapping is given to the model as keywords, whose output then has a loss, as in Hugging Face's models.

    Raises:
        TrainerError: the batch or the output is none of these.
    """
    if isinstance(batch, Mapping):
        return _own_loss(model(**batch))
    if not isinstance(batch, list | tuple) or len(batch) != 2:
        raise TrainerError(f"a batch is a {_kind(batch)}, not (inputs, targets): override training_step()")
    inputs, targets = batch
    outputs = model(inputs)
    if isinstance(outputs, torch.Tensor) and isinstance(targets, torch.Tensor):
        if not targets.is_floating_point() and outputs.ndim > targets.ndim:
            classes_second = outputs.movedim(-1, 1) if outputs.ndim > 2 else outputs
            return functional.cross_entropy(classes_second, targets)
        if targets.is_floating_point() and outputs.shape == targets.shape:
            return functional.mse_loss(outputs, targets)
    raise TrainerError(
        f"outputs {_kind(outputs)} and targets {_kind(targets)} have no obvious loss: override training_step()"
    )


def checked_result(result: Any, step: str) -> dict[str, Any]:
    """Return what a step gave.

    Raises:
        TrainerError: it is no mapping, or training has no scalar loss in it.
    """
    if isinstance(result, torch.Tensor) and result.ndim == 0:
        return {"loss": result}
    if not isinstance(result, Mapping):
        raise TrainerError(f"{step}() returned a {_kind(result)}; it must return a mapping such as {{'loss': loss}}")
    if step == "training_step":
        loss = result.get("loss")
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            raise TrainerError(f"{step}() returned loss {_kind(loss)}; it must be a scalar tensor with a gradient")
    return dict(result)


def batch_size(batch: Any) -> int:
    """Return the samples of a batch: the first dimension of its first tensor; 1 where it has none."""
    if isinstance(batch, torch.Tensor):
        return batch.shape[0] if batch.ndim else 1
    parts = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, list | tuple) else ()
    return next((batch_size(part) for part in parts if isinstance(part, torch.Tensor | Mapping | list | tuple)), 1)


def _own_loss(output: Any) -> Any:
    loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if loss is None:
        raise TrainerError(f"the model's output {_kind(output)} has no loss: override training_step()")
    return loss


def _kind(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    return f"{type(value).__name__} of {len(value)}" if isinstance(value, list | tuple) else type(value).__name__


def takes_metric(scheduler: Any) -> bool:
    """Return whether a scheduler steps on a metric."""
    return isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau)


def is_scalar(value: Any) -> bool:
    """Return whether a value is one number."""
    return isinstance(value, int | float) or (isinstance(value, torch.Tensor) and value.numel() == 1)
