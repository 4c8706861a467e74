"""Vocabulary-parallel cross entropy on one rank's logits, step by step as Megatron-LM computes it."""

from __future__ import annotations

from microbench.call import Call, Maker, Tensor
from predictor.costs.operator import Shape


def build(shape: Shape, make: Maker) -> Call:
    """Return the call of shape (tokens, vocab, logit_bytes): fp32 logits, or the training precision's.

    Raises:
        ValueError: logit_bytes is neither four nor what an element of the training precision has.
    """
    import torch

    tokens, vocab, logit_bytes = shape
    dtype = torch.float32 if logit_bytes == torch.float32.itemsize else make.dtype
    if dtype.itemsize != logit_bytes:
        raise ValueError(f"logit_bytes is {logit_bytes}; it must be 4, or {make.dtype.itemsize} as of {make.precision}")
    logits, targets = make.constant(tokens, vocab, dtype=dtype), make.ids(tokens, vocab)
    rows = torch.arange(tokens, device=make.device)

    def losses() -> tuple[Tensor, Tensor]:
        shifted = logits.detach() - logits.detach().max(dim=-1).values.unsqueeze(-1)
        outside = (targets < 0) | (targets >= vocab)
        chosen = shifted[rows, targets.masked_fill(outside, 0)].masked_fill(outside, 0.0)
        exponentials = shifted.exp_()
        total = exponentials.sum(dim=-1)
        return total.log() - chosen, exponentials.div_(total.unsqueeze(-1))

    _, softmax = losses()
    scale = torch.ones(tokens, 1, device=make.device, dtype=dtype)

    def backward() -> Tensor:
        # In place, as Megatron-LM's: the softmax is not needed again. Its values drift, its time does not.
        softmax[rows, targets] -= 1.0
        return softmax.mul_(scale)

    return Call(losses, (), "torch eager, Megatron-LM's steps", backward=backward)
