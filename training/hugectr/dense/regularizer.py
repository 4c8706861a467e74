"""Penalties on the size of the dense weights.

HugeCTR divides by the batch size, of one GPU; here it is the global batch, so that any number of ranks trains alike.
Source: HugeCTR v3.0, l1_regularizer.cu and l2_regularizer.cu.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from predictor.recommender.workload.layers import LossLayer


class Regularizer:
    """L1: λ/batch · Σ|w|; L2: λ/(2 · batch) · Σw²; over all weights of the dense network."""

    def __init__(self, loss: LossLayer | None, batch_size: int) -> None:
        """Take what the loss layer says."""
        self._kind = loss.regularizer if loss is not None and loss.weight else ""
        self._factor = loss.weight / batch_size if loss is not None else 0.0

    def term(self, weights: torch.Tensor) -> torch.Tensor | float:
        """Return what it adds to the loss."""
        if self._kind == "L1":
            return weights.abs().sum() * self._factor
        if self._kind == "L2":
            return torch.dot(weights, weights) * (0.5 * self._factor)
        return 0.0

    def add_gradient(self, gradients: Sequence[torch.Tensor], weights: Sequence[torch.Tensor], scale: float) -> None:
        """Add its gradient, times the scale of the others, in place."""
        if not self._kind:
            return
        with torch.no_grad():
            for gradient, weight in zip(gradients, weights, strict=True):
                gradient.add_(weight.sign() if self._kind == "L1" else weight, alpha=self._factor * scale)
