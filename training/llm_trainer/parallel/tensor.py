"""Tensor parallelism: every rank of a group holds whole heads and a share of the feed-forward network and vocabulary.

Shoeybi et al. 2019, arXiv:1909.08053, section 3: a column-wise projection is followed by a row-wise one, so that a
branch of a layer costs one all-reduce forward and one backward. Norms are replicated: their inputs, and so their
gradients, are the same on every rank. Logits stay split over the vocabulary, and so does their cross entropy. Weights
are DTensors, for sharding, checkpoints and the optimizer; modules compute on each rank's own part of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor
from torch.nn import functional

from llm_trainer.models.layers import Attention
from llm_trainer.parallel.tensor_ops import SumOfGradients, SumOverRanks, VocabularyCrossEntropy
from model_training_framework.trainer.rng import SEED_BITS, derive_seed

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from llm_trainer.models import TransformerLM


def split_tensors(stage: TransformerLM, mesh: DeviceMesh) -> None:
    """Split a model, or a pipeline stage, over the ranks of a mesh of one axis.

    Weights become DTensors, and logits this rank's columns of the vocabulary.
    """
    for layer in stage.layers.values():
        attention, ffn = layer.attention, layer.ffn
        for module in (attention.qkv, ffn.up, ffn.gate):
            if module is not None:
                split_columns(module, mesh)
        for module in (attention.output, ffn.down):
            split_rows(module, mesh)
        for branch in (attention, ffn):
            sum_gradients_of_input(branch, mesh)
    if stage.embed is not None:
        split_embedding(stage.embed.tokens, mesh)
    if stage.head is not None:
        split_columns(stage.head, mesh)
        sum_gradients_of_input(stage.head, mesh)
        columns = stage.config.vocab_size // mesh.size()
        stage.cross_entropy = VocabularyCrossEntropy(mesh.get_local_rank() * columns, mesh.get_group())
    stage.tie_weights()
    if stage.config.attention_dropout:
        rank = mesh.get_local_rank()
        for module in stage.modules():
            if isinstance(module, Attention):
                OwnDropout(module, rank)


def _distribute(module: nn.Module, mesh: DeviceMesh, **placements: Placement) -> None:
    """Turn parameters into DTensors of a placement by their names."""
    for name, placement in placements.items():
        parameter = getattr(module, name)
        if parameter is not None:
            split = distribute_tensor(parameter.detach(), mesh, [placement])
            setattr(module, name, nn.Parameter(split, requires_grad=parameter.requires_grad))


def _here(parameter: Any) -> Any:
    """Return this rank's part of a parameter."""
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter


def sum_gradients_of_input(module: nn.Module, mesh: DeviceMesh) -> None:
    """Sum the gradients of a module's first argument over ranks, each of which computes a part of them."""
    group = mesh.get_group()

    def enter(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return (SumOfGradients.apply(args[0], group), *args[1:])

    module.register_forward_pre_hook(enter)


def split_columns(linear: nn.Linear, mesh: DeviceMesh) -> None:
    """Let every rank compute a share of a projection's outputs."""
    _distribute(linear, mesh, weight=Shard(0), bias=Shard(0))

    def forward(hidden: Tensor) -> Tensor:
        return functional.linear(hidden, _here(linear.weight), _here(linear.bias))

    linear.forward = forward


def split_rows(linear: nn.Linear, mesh: DeviceMesh) -> None:
    """Let every rank take a share of a projection's inputs; the outputs are the sum over ranks, and the bias."""
    _distribute(linear, mesh, weight=Shard(1), bias=Replicate())
    group = mesh.get_group()

    def forward(hidden: Tensor) -> Tensor:
        summed = SumOverRanks.apply(functional.linear(hidden, _here(linear.weight)), group)
        return summed if linear.bias is None else summed + _here(linear.bias).to(summed.dtype)

    linear.forward = forward


def split_embedding(embedding: nn.Embedding, mesh: DeviceMesh) -> None:
    """Let every rank look up its rows of the vocabulary; a token's other ranks give zeros to the sum."""
    _distribute(embedding, mesh, weight=Shard(0))
    group = mesh.get_group()
    rows = embedding.num_embeddings // mesh.size()
    first = mesh.get_local_rank() * rows

    def forward(tokens: Tensor) -> Tensor:
        row = tokens - first
        is_elsewhere = (row < 0) | (row >= rows)
        looked_up = functional.embedding(row.masked_fill(is_elsewhere, 0), _here(embedding.weight))
        return SumOverRanks.apply(looked_up.masked_fill(is_elsewhere.unsqueeze(-1), 0.0), group)

    embedding.forward = forward


class OwnDropout:
    """Lets an attention module draw other random numbers on every rank, and all else the same ones.

    Heads of different ranks must drop different weights, hidden states the same. The module's seed is drawn from the
    generator that ranks share, so recomputation, which puts that one back, drops the same weights again.

    Attributes:
        handles: of the hooks, to remove them.
    """

    def __init__(self, module: nn.Module, rank: int) -> None:
        """Surround the calls of a module."""
        self._rank = rank
        self._outer: list[tuple[Any, Any]] = []
        self.handles = (
            module.register_forward_pre_hook(self._enter),
            module.register_forward_hook(self._leave, always_call=True),
        )

    def _enter(self, module: nn.Module, args: Any) -> None:
        if not module.training:
            return
        seed = derive_seed("attention", int(torch.randint(1 << SEED_BITS - 1, (), device="cpu")), self._rank)
        self._outer.append((torch.get_rng_state(), torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None))
        torch.manual_seed(seed)

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        if not module.training:
            return
        host, device = self._outer.pop()
        torch.set_rng_state(host)
        if device is not None:
            torch.cuda.set_rng_state(device)
