"""Optimizers of a language model: weight decay on matrices alone, one kernel for all weights where torch has it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from llm_trainer.exceptions import TrainingError

FUSED_DEVICES = {"cpu", "cuda"}


def create_optimizer(
    model: nn.Module,
    optimizer_type: str = "adamw",
    learning_rate: float = 1e-4,
    weight_decay: float = 0.01,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    *,
    fused: bool | None = None,
) -> torch.optim.Optimizer:
    """Return an optimizer of a model's weights.

    Matrices (linear layers and embeddings) decay; biases and normalisation weights do not.

    Args:
        model: whose weights that need a gradient are trained.
        optimizer_type: adamw (decoupled decay), adam (decay in the gradient) or sgd, whose momentum is ``betas[0]``.
        learning_rate: at its peak; a scheduler multiplies it.
        weight_decay: of matrices.
        betas: decay of Adam's two moments.
        eps: added to Adam's denominator.
        fused: one kernel for all weights; None: where every weight's device has it. A gradient scaler that unscales
            before clipping needs False.

    Raises:
        TrainingError: the type is unknown, or the model has no weight to train.

    Source: decoupled decay, Loshchilov and Hutter 2019, arXiv:1711.05101; matrices alone, Brown et al. 2020,
        arXiv:2005.14165, as Megatron-LM does it.
    """
    makers: dict[str, Callable[..., torch.optim.Optimizer]] = {
        "adamw": lambda groups, **options: torch.optim.AdamW(groups, betas=betas, eps=eps, **options),
        "adam": lambda groups, **options: torch.optim.Adam(groups, betas=betas, eps=eps, **options),
        "sgd": lambda groups, **options: torch.optim.SGD(groups, momentum=betas[0], **options),
    }
    if optimizer_type not in makers:
        raise TrainingError(f"optimizer_type is {optimizer_type!r}; expected {', '.join(makers)}")
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    if not weights:
        raise TrainingError("model has no weight that requires a gradient; there is nothing to train")
    groups: list[dict[str, Any]] = [
        {"params": [weight for weight in weights if weight.ndim >= 2], "weight_decay": weight_decay},
        {"params": [weight for weight in weights if weight.ndim < 2], "weight_decay": 0.0},
    ]
    if fused is None:
        fused = all(weight.device.type in FUSED_DEVICES and weight.is_floating_point() for weight in weights)
    return makers[optimizer_type]([group for group in groups if group["params"]], lr=learning_rate, fused=fused or None)
