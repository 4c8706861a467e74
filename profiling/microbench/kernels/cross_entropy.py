"""Vocabulary-parallel cross entropy on one rank's logits, step by step as Megatron-LM computes it."""

from __future__ import annotations

from microbench.call import Call, Maker, Tensor
from predictor.core.costs.operator import Shape


def losses_and_softmax(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return every token's loss, (tokens,), and the softmax that the backward pass needs, (tokens, vocab).

    Source: Megatron-LM core/tensor_parallel/cross_entropy.py, VocabParallelCrossEntropy.
    """
    import torch

    tokens, vocab = logits.shape
    rows = torch.arange(tokens, device=logits.device)
    shifted = logits.detach() - logits.detach().max(dim=-1).values.unsqueeze(-1)
    outside = (targets < 0) | (targets >= vocab)
    chosen = shifted[rows, targets.masked_fill(outside, 0)].masked_fill(outside, 0.0)
    exponentials = shifted.exp_()
    total = exponentials.sum(dim=-1)
    return total.log() - chosen, exponentials.div_(total.unsqueeze(-1))


def logits_gradient(softmax: Tensor, targets: Tensor, gradient: Tensor) -> Tensor:
    """Return the gradient of the logits, (tokens, vocab), where the losses' is ``gradient``, (tokens, 1).

    In place, as Megatron-LM's: the softmax is not needed again.
    """
    import torch

    softmax[torch.arange(softmax.shape[0], device=softmax.device), targets] -= 1.0
    return softmax.mul_(gradient)


def logits_dtype(shape: Shape, make: Maker) -> Tensor:
    """Return torch's type of the logits of a call of shape (tokens, vocab, logit_bytes).

    Raises:
        ValueError: logit_bytes is neither four nor what an element of the training precision has.
    """
    import torch

    logit_bytes = shape[-1]
    dtype = torch.float32 if logit_bytes == torch.float32.itemsize else make.dtype
    if dtype.itemsize != logit_bytes:
        raise ValueError(f"logit_bytes is {logit_bytes}; it must be 4, or {make.dtype.itemsize} as of {make.precision}")
    return dtype


def build(shape: Shape, make: Maker) -> Call:
    """Return the call of shape (tokens, vocab, logit_bytes): fp32 logits, or the training precision's.

    Raises:
        ValueError: logit_bytes is neither four nor what an element of the training precision has.
    """
    import torch

    tokens, vocab, _ = shape
    dtype = logits_dtype(shape, make)
    logits, targets = make.constant(tokens, vocab, dtype=dtype), make.ids(tokens, vocab)
    _, softmax = losses_and_softmax(logits, targets)
    scale = torch.ones(tokens, 1, device=make.device, dtype=dtype)
    # Run again and again on one softmax, its values drift; its time does not.
    return Call(
        lambda: losses_and_softmax(logits, targets),
        (),
        "torch eager, Megatron-LM's steps",
        backward=lambda: logits_gradient(softmax, targets, scale),
    )
