"""Gradients of the dense network summed over ranks, in buckets that travel beside the backward pass.

A bucket is a range of one buffer in the order of the weights. DistributedDataParallel does the same for a module's
forward pass; here the losses and flags of the step ride in the last bucket, so that a step needs no further collective,
and optimizers read the buffer itself. With few ranks messages are few and large, and latency is what a further message
costs: hence buckets of 4 MiB, and one message for a network below that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import distributed, nn

from hugectr.dense.module import Over

BUCKET_ELEMENTS = 1 << 20
# In front of the gradients: sum of losses, and of flags of gradients that are not finite.
EXTRAS = 2


class _SumOverRanks(torch.autograd.Function):
    """All-reduce whose gradient is an all-reduce."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        total = tensor.clone()
        distributed.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        total = gradients[0].clone()
        distributed.all_reduce(total, group=ctx.group)
        return total, None


def over_group(group: Any, num_ranks: int) -> Over:
    """Return the ranks of a process group."""
    if num_ranks == 1:
        return Over(1, lambda tensor: tensor)
    return Over(num_ranks, lambda tensor: _SumOverRanks.apply(tensor, group))


class GradientReduction:
    """Sums every weight's gradient, the loss and a flag over ranks.

    With one rank it keeps the gradients as autograd made them and copies nothing.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        *,
        group: Any = None,
        num_ranks: int = 1,
        bucket_elements: int = BUCKET_ELEMENTS,
    ) -> None:
        """Watch the parameters' gradients.

        Args:
            parameters: in the order of the weights' buffer.
            group: of the ranks.
            num_ranks: its size.
            bucket_elements: least size of a bucket.
        """
        self._parameters = list(parameters)
        self._group, self._num_ranks = group, num_ranks
        self._works: list[Any] = []
        if num_ranks == 1:
            return
        sizes = [parameter.numel() for parameter in self._parameters]
        device = self._parameters[0].device if self._parameters else torch.device("cpu")
        self._flat = torch.zeros(EXTRAS + sum(sizes), device=device)
        parts = self._flat[EXTRAS:].split(sizes) if sizes else ()
        self._views = [part.view(weight.shape) for part, weight in zip(parts, self._parameters, strict=True)]
        self._make_buckets(sizes, bucket_elements)
        for number, parameter in enumerate(self._parameters):
            parameter.register_post_accumulate_grad_hook(self._hook(number))
        self._begin()

    def _make_buckets(self, sizes: Sequence[int], bucket_elements: int) -> None:
        """Cut from the end, whose gradients come first; what is left over joins the bucket of the first weight."""
        self._bucket_of = [0] * len(sizes)
        self._ranges: list[tuple[int, int]] = []
        end = start = EXTRAS + sum(sizes)
        for number in reversed(range(len(sizes))):
            self._bucket_of[number] = len(self._ranges)
            start -= sizes[number]
            if end - start >= bucket_elements and number:
                self._ranges.append((start, end))
                end = start
        self._ranges.append((0, end))

    def _begin(self) -> None:
        self._left = [0] * len(self._ranges)
        for bucket in self._bucket_of:
            self._left[bucket] += 1
        self._has = [False] * len(self._parameters)

    def _hook(self, number: int) -> Any:
        def reduce(parameter: torch.Tensor) -> None:
            assert parameter.grad is not None
            self._views[number].copy_(parameter.grad)
            parameter.grad = None
            self._has[number] = True
            bucket = self._bucket_of[number]
            self._left[bucket] -= 1
            if self._left[bucket] == 0 and bucket < len(self._ranges) - 1:
                self._send(bucket)

        return reduce

    def _send(self, bucket: int) -> None:
        start, end = self._ranges[bucket]
        self._works.append(distributed.all_reduce(self._flat[start:end], group=self._group, async_op=True))

    def finish(self, loss: torch.Tensor, flag: torch.Tensor | None) -> tuple[list[torch.Tensor], torch.Tensor]:
        """Return the gradients, and (loss, number of ranks with the flag set), each summed over ranks.

        Called once after each backward pass.

        Args:
            loss: of this rank, a scalar.
            flag: a scalar that is 0 or 1; None is 0.
        """
        extras = torch.stack((loss.detach().float(), torch.zeros_like(loss) if flag is None else flag.float()))
        if self._num_ranks == 1:
            gradients = []
            for parameter in self._parameters:
                gradients.append(torch.zeros_like(parameter) if parameter.grad is None else parameter.grad)
                parameter.grad = None
            return gradients, extras
        for number, has in enumerate(self._has):
            if not has:
                self._views[number].zero_()
        self._flat[:EXTRAS].copy_(extras)
        sent = [self._left[bucket] == 0 for bucket in range(len(self._ranges) - 1)]
        for bucket, is_sent in enumerate([*sent, False]):
            if not is_sent:
                self._send(bucket)
        for work in self._works:
            work.wait()
        self._works.clear()
        self._begin()
        return self._views, self._flat[:EXTRAS].clone()
