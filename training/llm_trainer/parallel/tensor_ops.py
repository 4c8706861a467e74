"""Collectives of the tensor axis with their gradients, and cross entropy on logits that are split over the vocabulary.

Compute is on each rank's plain tensors: on the shapes of one rank, dispatching an operation on a DTensor takes longer
than many of the operations.

Source: Shoeybi et al. 2019, arXiv:1909.08053, section 3 (the operators f and g); Megatron-LM
core/tensor_parallel/{mappings,cross_entropy}.py.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed.distributed_c10d import ProcessGroup

from llm_trainer.models.transformer import IGNORED


def all_reduced(tensor: Tensor, group: ProcessGroup, operation: str = "sum") -> Tensor:
    """Reduce a tensor over a group in place, and return it; torch.compile and the profiler see both halves."""
    reduced = torch.ops._c10d_functional.all_reduce_(tensor.contiguous(), operation, group.group_name)
    return torch.ops._c10d_functional.wait_tensor(reduced)


class SumOfGradients(torch.autograd.Function):
    """The input of a column-wise projection: itself forward, the sum of the ranks' gradients backward (f)."""

    @staticmethod
    def forward(context: Any, tensor: Tensor, group: ProcessGroup) -> Tensor:
        """Return the input."""
        context.group = group
        return tensor.view_as(tensor)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """Return the gradient's sum over ranks."""
        return all_reduced(gradients[0].clone(), context.group), None


class SumOverRanks(torch.autograd.Function):
    """The output of a row-wise projection: its sum over ranks forward, the gradient as it is backward (g)."""

    @staticmethod
    def forward(context: Any, tensor: Tensor, group: ProcessGroup) -> Tensor:
        """Return the sum, in place of the input."""
        context.mark_dirty(tensor)
        return all_reduced(tensor, group)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """Return the gradient."""
        return gradients[0], None


class TokenLosses(torch.autograd.Function):
    """Cross entropy of every token, from this rank's columns of the logits."""

    @staticmethod
    def forward(context: Any, logits: Tensor, targets: Tensor, first: int, group: ProcessGroup) -> Tensor:
        """Return losses, (tokens,).

        Args:
            context: keeps the softmax.
            logits: (tokens, columns of this rank).
            targets: (tokens,) in the whole vocabulary.
            first: column of the vocabulary that is this rank's first.
            group: ranks that hold the other columns.
        """
        largest = all_reduced(logits.amax(dim=-1), group, "max")
        shifted = logits - largest.unsqueeze(-1)
        columns = targets - first
        is_elsewhere = (columns < 0) | (columns >= logits.shape[-1])
        columns = columns.masked_fill(is_elsewhere, 0).unsqueeze(-1)
        chosen = shifted.gather(-1, columns).squeeze(-1).masked_fill(is_elsewhere, 0.0)
        exponentials = shifted.exp_()
        chosen, total = all_reduced(torch.stack((chosen, exponentials.sum(dim=-1))), group).unbind()
        context.save_for_backward(exponentials.div_(total.unsqueeze(-1)), columns, is_elsewhere)
        return total.log() - chosen

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        """Return the gradient of the logits, in place of the softmax."""
        softmax, columns, is_elsewhere = context.saved_tensors
        softmax.scatter_add_(-1, columns, is_elsewhere.to(softmax.dtype).sub_(1.0).unsqueeze(-1))
        return softmax.mul_(gradients[0].unsqueeze(-1)), None, None, None


class VocabularyCrossEntropy:
    """Mean cross entropy over the targets that count, from this rank's columns of the logits."""

    def __init__(self, first: int, group: ProcessGroup) -> None:
        """Say which columns of the vocabulary are here."""
        self._first = first
        self._group = group

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the mean, the same on every rank.

        Args:
            logits: (tokens, columns of this rank).
            targets: (tokens,) in the whole vocabulary; -100 does not count.
        """
        counts = targets != IGNORED
        losses = TokenLosses.apply(logits.float(), targets.masked_fill(~counts, 0), self._first, self._group)
        return losses.masked_fill(~counts, 0.0).sum() / counts.sum()
