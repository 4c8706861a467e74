"""Tensor parallelism: every rank of a group holds whole heads and a share of the feed-forward network and vocabulary.

Shoeybi et al. 2019, arXiv:1909.08053, section 3, as DTensor styles: a column-wise projection is followed by a row-wise
one, so that a branch of a layer costs one all-reduce forward and one backward. Norms are replicated: their inputs, and
so their gradients, are the same on every rank. Logits stay split over the vocabulary, and so does their cross entropy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from llm_trainer.models.layers import Attention
from model_training_framework.trainer.rng import SEED_BITS, derive_seed

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from llm_trainer.models import TransformerLM


def split_tensors(stage: TransformerLM, mesh: DeviceMesh) -> None:
    """Split a model, or a pipeline stage, over the ranks of a mesh of one axis.

    Weights become DTensors; a loss is to be computed within torch's ``loss_parallel()``.
    """
    plan: dict[str, Any] = (
        {"embed.tokens": RowwiseParallel(input_layouts=Replicate())} if stage.embed is not None else {}
    )
    for name in stage.layers:
        prefix = f"layers.{name}."
        plan |= {
            f"{prefix}attention.qkv": ColwiseParallel(),
            f"{prefix}attention.output": RowwiseParallel(),
            f"{prefix}ffn.up": ColwiseParallel(),
            f"{prefix}ffn.gate": ColwiseParallel(),
            f"{prefix}ffn.down": RowwiseParallel(),
        }
        if stage.layers[name].ffn.gate is None:
            del plan[f"{prefix}ffn.gate"]
    if stage.head is not None:
        plan["head"] = ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)
    parallelize_module(stage, mesh, plan)
    stage.tie_weights()
    if stage.config.attention_dropout:
        rank = mesh.get_local_rank()
        for module in stage.modules():
            if isinstance(module, Attention):
                OwnDropout(module, rank)


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
