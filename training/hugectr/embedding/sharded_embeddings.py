"""All embedding layers of a model, sharded by a plan: keys in, pooled vectors out, updates in place."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from hugectr.data.batch import SparseInput
from hugectr.embedding.hashed_rows import HashedRows
from hugectr.embedding.initial_values import HASH_TABLE_BOUND, bound_of_slot
from hugectr.embedding.lookup import PooledLookup
from hugectr.embedding.row_store import RowStore
from hugectr.embedding.shard import Shard, SlotKeys
from hugectr.embedding.sharding import shard_tables
from hugectr.exceptions import EmbeddingOverflowError
from hugectr.plans import runnable
from predictor.core.base.errors import ConfigError
from predictor.recommender.workload.embedding import Combiner, EmbeddingLayer
from predictor.recommender.workload.model import Recommender
from predictor.recommender.workload.optimizer import Optimizer
from predictor.recommender.workload.plan import ShardedTable, Sharding, ShardingPlan


class PooledEmbeddings:
    """Pooled vectors that may still be on their way from other ranks."""

    def __init__(self, embeddings: ShardedEmbeddings, awaitable: Any, lengths: dict[str, torch.Tensor]) -> None:
        """Keep what the answer is made of."""
        self._embeddings = embeddings
        self._awaitable = awaitable
        self._lengths = lengths

    def wait(self) -> dict[str, torch.Tensor]:
        """Return (samples, slots, width) by the name of the embedding layer's output."""
        return self._embeddings._by_layer(self._awaitable.wait(), self._lengths)


class ShardedEmbeddings(nn.Module):
    """Embedding layers on the ranks of a group.

    Rows are not parameters: ``update`` trains them, ``files`` saves them. In training mode new keys get rows with
    initial values; in evaluation mode they look up zeros. Gradients are those of the mean over ranks of the ranks'
    losses.
    """

    def __init__(
        self,
        model: Recommender,
        plan: ShardingPlan,
        *,
        device: torch.device,
        seed: int,
        output_dtype: torch.dtype = torch.float32,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        """Allocate the tables of this rank.

        Args:
            model: whose embedding layers they are.
            plan: of as many ranks as the group has.
            device: of the tables.
            seed: of initial values.
            output_dtype: of the pooled vectors.
            group: of the ranks; None: all. ``torch.distributed`` must be initialised, for one rank too.

        Raises:
            ConfigError: the plan does not fit the model, or cannot be run.
        """
        super().__init__()
        group = dist.group.WORLD if group is None else group
        _check(plan, model, dist.get_world_size(group))
        self.model = model
        self.plan = plan = runnable(plan)
        self.device = device
        self.seed = seed
        self.output_dtype = output_dtype
        self.group = group
        self.rank = dist.get_rank(self.group)
        self._layers = {layer.name: layer for layer in model.embeddings}
        self._tables = {sharded.table.name: sharded for sharded in plan.tables}
        self._offsets = {layer.name: _slot_offsets(layer, device) for layer in model.embeddings if layer.slot_rows}
        self._lookups: list[PooledLookup] = []
        self._collection = [  # in a list, so that its parameters are none of this module's
            shard_tables(
                plan.tables,
                [[_feature(sharded.table.layer, slot) for slot in sharded.table.slots] for sharded in plan.tables],
                self._make_lookup,
                device=device,
                group=self.group,
            )
        ]

    def _make_lookup(self, parts: list[tuple[int, int]], kind: Sharding) -> PooledLookup:
        lookup = PooledLookup(
            [self._shard(self.plan.tables[number], column) for number, column in parts],
            device=self.device,
            seed=self.seed,
            output_dtype=self.output_dtype,
            adds_up_elsewhere=kind is Sharding.ROW_WISE,
        )
        if kind is Sharding.DATA_PARALLEL and self.plan.num_ranks > 1:
            for store in lookup.stores:
                store.replicas = self.group
        self._lookups.append(lookup)
        return lookup

    def _shard(self, sharded: ShardedTable, first_column: int) -> tuple[Shard, Optimizer | None]:
        """Return a part of a table, and the optimizer of its layer."""
        table, layer = sharded.table, self._layers[sharded.table.layer]
        columns = table.width // len(sharded.ranks) if sharded.sharding is Sharding.COLUMN_WISE else table.width
        parts = self.plan.num_ranks if sharded.sharding is Sharding.ROW_WISE else 1
        part = self.rank if parts > 1 else 0
        known: tuple[SlotKeys, ...] = ()
        capacity = -(-table.rows // parts)
        if layer.slot_rows:
            starts, sizes = slot_starts(layer), layer.slot_rows
            known = tuple(SlotKeys(slot, starts[slot], sizes[slot], bound_of_slot(sizes[slot])) for slot in table.slots)
            capacity = len(range(known[0].start + (part - known[0].start) % parts, known[-1].end, parts))
        shard = Shard(
            name=table.name,
            layer=table.layer,
            slots=table.slots,
            columns=range(first_column, first_column + columns),
            capacity=capacity,
            parts=parts,
            part=part,
            known=known,
            bound=HASH_TABLE_BOUND,
            is_copied=sharded.sharding is Sharding.DATA_PARALLEL,
        )
        return shard, layer.optimizer or self.model.optimizer

    @property
    def stores(self) -> list[RowStore]:
        """Return the row stores of this rank."""
        return [store for lookup in self._lookups for store in lookup.stores]

    def train(self, mode: bool = True) -> ShardedEmbeddings:
        """Set training or evaluation mode."""
        super().train(mode)
        for lookup in self._lookups:
            lookup.train(mode)
        return self

    def forward(self, sparse: dict[str, SparseInput]) -> PooledEmbeddings:
        """Begin to look up the keys of this rank's samples."""
        names, keys, lengths = [], [], {}
        for layer in self.model.embeddings:
            given = sparse[layer.input]
            names += [_feature(layer.name, slot) for slot in range(layer.num_slots)]
            lengths[layer.name] = given.lengths
            keys.append(self._shifted(layer, given))
        kjt = KeyedJaggedTensor(
            keys=names,
            values=keys[0] if len(keys) == 1 else torch.cat(keys),
            lengths=torch.cat(list(lengths.values())) if len(lengths) > 1 else next(iter(lengths.values())),
        )
        return PooledEmbeddings(self, self._collection[0](kjt), lengths)

    def _shifted(self, layer: EmbeddingLayer, given: SparseInput) -> torch.Tensor:
        """Return the keys as unique ones of the layer, where they count from 0 in every slot."""
        if not layer.slot_rows:
            return given.keys
        per_slot = given.lengths.view(layer.num_slots, -1).sum(1)
        shift = torch.repeat_interleave(self._offsets[layer.name], per_slot, output_size=len(given.keys))
        return given.keys + shift

    def _by_layer(self, pooled: Any, lengths: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        values = pooled.values()
        columns = values.split(pooled.length_per_key(), dim=1)
        place = {name: number for number, name in enumerate(pooled.keys())}
        outputs = {}
        for layer in self.model.embeddings:
            own = [place[_feature(layer.name, slot)] for slot in range(layer.num_slots)]
            if len(columns) == len(own) and own == list(range(len(own))):
                output = values
            else:
                output = torch.cat([columns[number] for number in own], dim=1)
            output = output.view(-1, layer.num_slots, layer.width)
            if layer.combiner is Combiner.MEAN:
                counts = lengths[layer.name].view(layer.num_slots, -1).t().clamp(min=1)
                output = output / counts[:, :, None]
            outputs[layer.output] = output.to(self.output_dtype)
        return outputs

    def update(self, learning_rate: float, scale: float = 1.0, step: int = 1, *, is_of_all: bool = False) -> None:
        """Apply the gradients of the last backward pass.

        Args:
            learning_rate: of layers that use the model's optimizer.
            scale: that the loss was multiplied by.
            step: counted from 1.
            is_of_all: the rate is also that of layers with their own optimizer, which else follow its schedule.
        """
        for store in self.stores:
            optimizer = store.table.optimizer
            assert optimizer is not None
            is_given = is_of_all or optimizer == self.model.optimizer
            rate = learning_rate if is_given else optimizer.schedule.rate(step)
            store.update(rate, scale, step)

    def drop_gradients(self) -> None:
        """Forget the gradients of the last backward pass."""
        for store in self.stores:
            store.drop_gradients()

    def has_finite_gradients(self) -> bool:
        """Return whether this rank's gradients are all finite."""
        return all(store.has_finite_gradients() for store in self.stores)

    def check_overflow(self) -> None:
        """Check that every key found room; all ranks call it together.

        Raises:
            EmbeddingOverflowError: on every rank, where some table of some rank was too small.
        """
        tables = {name: number for number, name in enumerate(self._tables)}
        missing = torch.zeros(len(tables), dtype=torch.int64, device=self.device)
        for store in self.stores:
            for rows in store.tables:
                is_counted_elsewhere = rows.shard.columns.start > 0 or (rows.shard.is_copied and self.rank > 0)
                if isinstance(rows, HashedRows) and not is_counted_elsewhere:
                    missing[tables[rows.shard.name]] += rows.missing
        dist.all_reduce(missing, group=self.group)
        for name, count in zip(tables, missing.tolist(), strict=True):
            if count:
                layer = self._layers[self._tables[name].table.layer]
                raise EmbeddingOverflowError(
                    f"table {name}: {count} keys found no room; max_vocabulary_size_per_gpu of {layer.name} is "
                    f"{layer.rows_per_gpu}. Give it more rows, or train on more GPUs"
                )


def _check(plan: ShardingPlan, model: Recommender, num_ranks: int) -> None:
    """Check that a plan places every table of a model once, on so many ranks."""
    plan.check()
    if plan.num_ranks != num_ranks:
        raise ConfigError(f"the plan is one of {plan.num_ranks} ranks; there are {num_ranks}")
    expected = sorted(table.name for layer in model.embeddings for table in layer.tables(num_ranks))
    placed = sorted(sharded.table.name for sharded in plan.tables)
    if placed != expected:
        wrong = sorted(set(placed) ^ set(expected)) or placed
        raise ConfigError(
            f"the plan and the model differ in table {wrong[0]}; the model has {', '.join(expected)}, each placed once"
        )


def _feature(layer: str, slot: int) -> str:
    return f"{layer}:{slot}"


def slot_starts(layer: EmbeddingLayer) -> list[int]:
    """Return the first key of each slot among the layer's keys, and the end of the last."""
    starts = [0]
    for rows in layer.slot_rows:
        starts.append(starts[-1] + rows)
    return starts


def _slot_offsets(layer: EmbeddingLayer, device: torch.device) -> torch.Tensor:
    return torch.tensor(slot_starts(layer)[:-1], device=device)
