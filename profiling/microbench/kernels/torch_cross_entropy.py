"""PyTorch's own cross entropy, the mean over all tokens."""

from __future__ import annotations

from microbench.call import Call, Maker
from microbench.kernels.cross_entropy import logits_dtype
from predictor.core.costs.operator import Shape


def build(shape: Shape, make: Maker) -> Call:
    """Return the call of shape (tokens, vocab, logit_bytes): fp32 logits, or the training precision's.

    Raises:
        ValueError: logit_bytes is neither four nor what an element of the training precision has.
    """
    from torch.nn.functional import cross_entropy

    tokens, vocab, _ = shape
    logits = make.constant(tokens, vocab, dtype=logits_dtype(shape, make)).requires_grad_()
    targets = make.ids(tokens, vocab)
    return Call(lambda: cross_entropy(logits, targets), (logits,), "torch cross_entropy")
