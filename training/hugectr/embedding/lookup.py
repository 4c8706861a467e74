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
from hugectr.embedding.table_rows import Shard
from predictor.workloads.recommender.optimizer import Optimizer


class Bags(NamedTuple):
    """Which keys are pooled: by slot, then sample.

    Attributes:
        rows: (keys,) int32 of the store.
        offsets: (slots · samples + 1,) int32.
        samples: of the batches of all ranks together.
    """

    rows: torch.Tensor
    offsets: torch.Tensor
    samples: int


class _Pool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor, store: RowStore, bags: Bags) -> torch.Tensor:
        """Return (samples, slots · width) sums."""
        ctx.store, ctx.bags = store, bags
        pooled = store.pool(bags.rows, bags.offsets)
        return pooled.view(-1, bags.samples, store.width).transpose(0, 1).reshape(bags.samples, -1)

    @staticmethod
    def backward(ctx: Any, gradients: torch.Tensor) -> tuple[None, None, None]:
        """Leave the gradients in the store."""
        store, (rows, offsets, samples) = ctx.store, ctx.bags
        slots = store.num_features
        bags = torch.arange(slots * samples, dtype=torch.int32, device=rows.device)
        bags = bags.view(samples, slots).t().reshape(-1)  # of slot-wise bags among the sample-wise gradients
        if len(rows) != len(bags) or not torch.equal(offsets[:-1], torch.arange(len(rows), dtype=torch.int32)):
            bags = torch.repeat_interleave(bags, offsets.diff(), output_size=len(rows))
        store.add_gradient(rows, bags, gradients.reshape(samples * slots, store.width))
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
        keys, offsets = features.values(), features.offsets()
        ends = features.offset_per_key()
        outputs, slot = [], 0
        for store in self.stores:
            parts, first = [], slot
            for table in store.tables:
                parts.append(keys[ends[slot] : ends[slot + table.shard.num_slots]])
                slot += table.shard.num_slots
            rows = store.rows_of(parts, insert=self.training)
            own = offsets[first * samples : slot * samples + 1] - ends[first]
            anchor = torch.empty(0, requires_grad=True)
            outputs.append(_Pool.apply(anchor, store, Bags(rows, own.to(torch.int32), samples)))
        pooled = outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)
        return pooled.to(self.output_dtype)
