"""Cross entropy with the widening of its logits, fused by torch.compile: the mean over all tokens."""

from __future__ import annotations

from microbench.call import Call, Maker, Tensor
from microbench.compiled import fused, kernel_name
from predictor.core.costs.operator import Shape


def loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean loss. Source: torchtitan, components/loss.py, cross_entropy_loss."""
    from torch.nn.functional import cross_entropy

    return cross_entropy(logits.float(), targets)


def build(shape: Shape, make: Maker) -> Call:
    """Return the call of shape (tokens, vocab)."""
    tokens, vocab = shape
    logits, targets = make.activation(tokens, vocab), make.ids(tokens, vocab)
    return Call(lambda: fused(loss)(logits, targets), (logits,), kernel_name(make))
