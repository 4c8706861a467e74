"""Gradients over ranks: their mean over data ranks, the sum of a weight that two stages hold, and the global norm."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import prod
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, distributed, nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from torch.distributed.tensor import DTensor

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

BUCKET_BYTES = 25 * 2**20  # of an all-reduce; DistributedDataParallel's bucket_cap_mb


def local(tensor: Tensor) -> Tensor:
    """Return this rank's part of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def average(weights: Iterable[nn.Parameter], group: Any) -> None:
    """Replace gradients by their mean over the ranks of a group, in buckets.

    For what DistributedDataParallel does not take: DTensors, and stages whose backward passes a schedule calls. It runs
    after the last backward pass; nothing of it overlaps with computation.
    """
    size = distributed.get_world_size(group)
    if size == 1:
        return
    for bucket in _buckets([local(weight.grad) for weight in weights if weight.grad is not None]):
        flat = _flatten_dense_tensors(bucket)
        distributed.all_reduce(flat, group=group)
        flat /= size
        for grad, mean in zip(bucket, _unflatten_dense_tensors(flat, bucket), strict=True):
            grad.copy_(mean)


def _buckets(tensors: list[Tensor]) -> Iterator[list[Tensor]]:
    """Yield tensors of one dtype that together have about ``BUCKET_BYTES``."""
    bucket: list[Tensor] = []
    size_bytes = 0
    for tensor in tensors:
        if bucket and (size_bytes >= BUCKET_BYTES or tensor.dtype != bucket[0].dtype):
            yield bucket
            bucket, size_bytes = [], 0
        bucket.append(tensor)
        size_bytes += tensor.numel() * tensor.element_size()
    if bucket:
        yield bucket


def sum_shared(weight: nn.Parameter, group: Any) -> None:
    """Sum the gradient of a weight that the first and the last stage both hold, as Megatron-LM does with embeddings.

    Args:
        weight: this stage's copy.
        group: the two ranks.
    """
    if weight.grad is not None:
        distributed.all_reduce(local(weight.grad), group=group)


def global_norm(weights: Iterable[nn.Parameter], mesh: DeviceMesh, device: torch.device) -> Tensor:
    """Return the norm of all gradients over all ranks, the same on every rank.

    Each rank adds the squares of its parts, divided by how many ranks of its data and tensor axes hold the same part.

    Args:
        weights: of this rank; a weight that two stages hold is given on one of them.
        mesh: of all ranks, with the axes pipeline, data and tensor.
        device: of the result.
    """
    copies_of_plain = mesh["data"].size() * mesh["tensor"].size()
    total = torch.zeros((), dtype=torch.float32, device=device)
    for weight in weights:
        grad = weight.grad
        if grad is None:
            continue
        shards = 1
        if isinstance(grad, DTensor):
            sizes = zip(grad.placements, grad.device_mesh.shape, strict=True)
            shards = prod([size for placement, size in sizes if not placement.is_replicate()])
        total += torch.linalg.vector_norm(local(grad), dtype=torch.float32).square() * shards / copies_of_plain
    if mesh.size() > 1:
        distributed.all_reduce(total)
    return total.sqrt()


def clip(weights: Iterable[nn.Parameter], norm: Tensor, max_norm: float) -> None:
    """Scale gradients so that their global norm is at most ``max_norm``; as torch.nn.utils.clip_grad_norm_."""
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    grads = [local(weight.grad) for weight in weights if weight.grad is not None]
    if grads:
        torch._foreach_mul_(grads, factor)
