"""The lookup behind TorchRec's exchange: keys that arrived at their owner to pooled rows.

Stands in for TorchRec's ``GroupedPooledEmbeddingsLookup``, whose CPU kernels have neither Adam nor momentum nor rows
that keys claim as they come. It takes the same keys and gives the same layout of pooled rows; its backward pass hands
the gradients to the row stores instead of updating.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import nn

from hugectr.embedding.row_store import RowStore
from hugectr.embedding.shard import Shard
from hugectr.operator_scopes import operator
from predictor.recommender.workload.optimizer import Optimizer


class Bags(NamedTuple):
    """Which rows are pooled: by sample, then slot.

    Attributes:
        rows: (keys,) int32 of the store.
        offsets: (samples · slots + 1,) int32.
        lengths: (samples · slots,); None where every bag holds one row.
        samples: of the batches of all ranks together.
    """

    rows: torch.Tensor
    offsets: torch.Tensor
    lengths: torch.Tensor | None
    samples: int


def by_sample(rows: torch.Tensor, lengths: torch.Tensor, slots: int) -> Bags:
    """Return the bags of rows that lie by slot, then sample.

    Reordering rows is cheaper than reordering what is pooled, whose elements are ``width`` times as many.
    """
    samples = len(lengths) // slots
    shortest, longest = (int(value) for value in torch.aminmax(lengths))
    if shortest == longest:
        ordered = rows.view(slots, samples, longest).transpose(0, 1).reshape(-1)
        lengths = None if longest == 1 else lengths
        offsets = torch.arange(0, samples * slots * longest + 1, max(longest, 1), dtype=torch.int32, device=rows.device)
        if longest == 0:
            offsets = offsets.new_zeros(samples * slots + 1)
        return Bags(ordered, offsets, lengths, samples)
    order = torch.arange(samples * slots, dtype=torch.int32, device=rows.device).view(slots, samples).t().reshape(-1)
    permuted, ordered, _ = torch.ops.fbgemm.permute_2D_sparse_data(order, lengths.view(-1, 1), rows, None, len(rows))
    lengths = permuted.view(-1)
    return Bags(ordered, torch.ops.fbgemm.asynchronous_complete_cumsum(lengths), lengths, samples)


class _Pool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor, store: RowStore, bags: Bags) -> torch.Tensor:
        """Return (samples, slots · width) sums."""
        ctx.store, ctx.bags = store, bags
        return store.pool(bags.rows, bags.offsets).view(bags.samples, -1)

    @staticmethod
    def backward(ctx: Any, gradients: torch.Tensor) -> tuple[None, None, None]:
        """Leave the gradients in the store."""
        bags = ctx.bags
        ctx.store.add_gradient(bags.rows, bags.lengths, gradients.reshape(-1, ctx.store.width))
        return None, None, None


class PooledLookup(nn.Module):
    """Lookup in all tables of one way of sharding on this rank.

    Attributes:
        stores: one per run of tables of one width and optimizer, in the order of the tables.
    """

    def __init__(
        self,
        shards: Sequence[tuple[Shard, Optimizer | None]],
        *,
        device: torch.device,
        seed: int,
        output_dtype: torch.dtype,
        adds_up_elsewhere: bool,
    ) -> None:
        """Allocate the tables.

        Args:
            shards: with their optimizers, in TorchRec's order.
            device: of the tables.
            seed: of initial values.
            output_dtype: of the pooled rows.
            adds_up_elsewhere: the exchange sums what ranks pooled; then it travels in fp32.
        """
        super().__init__()
        self.output_dtype = torch.float32 if adds_up_elsewhere else output_dtype
        self.device = device
        self.stores = [
            RowStore([shard for shard, _ in run], optimizer, device, seed)
            for (_, optimizer), run in (
                (kind, list(run)) for kind, run in groupby(shards, key=lambda pair: (pair[0].width, pair[1]))
            )
        ]

    def forward(self, features: Any) -> torch.Tensor:
        """Return (samples, all columns), TorchRec's layout.

        Args:
            features: TorchRec's KeyedJaggedTensor, slots in the order of the tables.
        """
        samples = features.stride()
        if not self.stores:
            return torch.empty(samples, 0, dtype=self.output_dtype, device=self.device, requires_grad=True)
        keys, lengths = features.values(), features.lengths()
        ends = features.offset_per_key()
        outputs, slot = [], 0
        for store in self.stores:
            last = slot + store.num_features
            slot_lengths = [ends[i + 1] - ends[i] for i in range(slot, last)]
            with operator("key_lookup"):
                rows = store.rows_of(keys[ends[slot] : ends[last]], slot_lengths, insert=self.training)
            own = lengths[slot * samples : last * samples]
            slot = last
            with operator("embedding_bag"):
                bags = by_sample(rows, own, store.num_features)
                outputs.append(_Pool.apply(torch.empty(0, requires_grad=True), store, bags))
        pooled = outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)
        return pooled.to(self.output_dtype)
