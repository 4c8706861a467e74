"""Losses of this rank's samples, as shares of the mean over the global batch; and predictions.

Source: HugeCTR v3.0, loss.cu.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch.nn import functional

from predictor.recommender.workload.layers import (
    BinaryCrossEntropyLoss,
    CrossEntropyLoss,
    LossLayer,
    MultiCrossEntropyLoss,
)

NOT_LABELLED_BELOW = -0.5


class LossOutput(NamedTuple):
    """What a loss gives.

    Attributes:
        total: sum over samples, a float32 scalar; divided by the global batch size it is this rank's share of the mean.
        predictions: (samples, labels) probabilities, float32, without gradient.
    """

    total: torch.Tensor
    predictions: torch.Tensor


def loss_of(layer: LossLayer, logits: torch.Tensor, label: torch.Tensor) -> LossOutput:
    """Return the loss of (samples, columns) logits, computed in float32."""
    logits = logits.float()
    match layer:
        case BinaryCrossEntropyLoss():
            total = functional.binary_cross_entropy_with_logits(logits, label, reduction="sum")
            return LossOutput(total, torch.sigmoid(logits.detach()))
        case CrossEntropyLoss():
            classes = (label[:, 0] >= 0.5).long()
            total = functional.cross_entropy(logits, classes, reduction="sum")
            return LossOutput(total, torch.softmax(logits.detach(), dim=1)[:, 1:])
        case MultiCrossEntropyLoss():
            weight = torch.tensor(layer.target_weight, device=logits.device)
            every = functional.binary_cross_entropy_with_logits(logits, label, weight=weight, reduction="none")
            total = every.where(label >= NOT_LABELLED_BELOW, 0.0).sum() / logits.shape[1]
            return LossOutput(total, torch.sigmoid(logits.detach()))
    raise TypeError(f"no loss of type {layer.TYPE}")
