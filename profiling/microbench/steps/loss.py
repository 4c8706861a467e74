"""The loss over the vocabulary as an autograd function, in the same steps as the timed cross-entropy operator."""

from __future__ import annotations

from typing import Any

import torch

from microbench.call import Tensor
from microbench.kernels.cross_entropy import logits_gradient, losses_and_softmax


class VocabularyLoss(torch.autograd.Function):  # type: ignore[misc]
    """Cross entropy of fp32 logits (tokens, vocab) and targets (tokens,), per token."""

    @staticmethod
    def forward(context: Any, logits: Tensor, targets: Tensor) -> Tensor:
        """Return every token's loss and keep the softmax."""
        losses, softmax = losses_and_softmax(logits, targets)
        context.save_for_backward(softmax, targets)
        return losses

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """Return the gradient of the logits, in place of the softmax."""
        softmax, targets = context.saved_tensors
        return logits_gradient(softmax, targets, gradient.unsqueeze(-1)), None
