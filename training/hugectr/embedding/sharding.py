"""TorchRec's sharding with the project's own lookups and routes.

TorchRec asks each way of sharding for an input exchange, a lookup and an output exchange. The classes here are
TorchRec's, of which the lookup is replaced; row-wise sharding also sends a key to rank key modulo ranks, as HugeCTR's
distributed slots do, which TorchRec's bucketisation does with blocks of size 0.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.distributed._shard.sharding_spec import EnumerableShardingSpec, ShardMetadata
from torchrec.distributed.embedding_types import EmbeddingComputeKernel
from torchrec.distributed.embeddingbag import ShardedEmbeddingBagCollection
from torchrec.distributed.sharding.cw_sharding import CwPooledEmbeddingSharding
from torchrec.distributed.sharding.dp_sharding import DpPooledEmbeddingSharding
from torchrec.distributed.sharding.rw_sharding import RwPooledEmbeddingSharding, RwSparseFeaturesDist
from torchrec.distributed.sharding.tw_sharding import TwPooledEmbeddingSharding
from torchrec.distributed.types import ParameterSharding, ShardingEnv
from torchrec.modules.embedding_configs import EmbeddingBagConfig, PoolingType
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from hugectr.embedding.lookup import PooledLookup
from hugectr.operator_scopes import traffic
from predictor.recommender.workload.plan import ShardedTable, Sharding

VIRTUAL_ROWS = 1 << 40  # of every table for TorchRec, which allocates none of them

# Of a TorchRec sharding's tables on this rank, by (number in the plan, first column), and the way of sharding.
MakeLookup = Callable[[list[tuple[int, int]], Sharding], PooledLookup]


def _local_tables(sharding: Any) -> list[tuple[int, int]]:
    return [
        (int(table.name), 0 if table.local_metadata is None else table.local_metadata.shard_offsets[1])
        for group in sharding._grouped_embedding_configs
        for table in group.embedding_tables
    ]


def _sharding_classes(make_lookup: MakeLookup) -> dict[str, type]:
    class TableWise(TwPooledEmbeddingSharding):
        def create_lookup(self, *_: Any, **__: Any) -> PooledLookup:
            return make_lookup(_local_tables(self), Sharding.TABLE_WISE)

    class ColumnWise(CwPooledEmbeddingSharding):
        def create_lookup(self, *_: Any, **__: Any) -> PooledLookup:
            return make_lookup(_local_tables(self), Sharding.COLUMN_WISE)

    class DataParallel(DpPooledEmbeddingSharding):
        def create_lookup(self, *_: Any, **__: Any) -> PooledLookup:
            return make_lookup(_local_tables(self), Sharding.DATA_PARALLEL)

    class RowWise(RwPooledEmbeddingSharding):
        def create_input_dist(self, device: torch.device | None = None) -> Any:
            num_features = self._get_num_features()
            return RwSparseFeaturesDist(
                pg=self._pg,
                num_features=num_features,
                feature_hash_sizes=[0] * num_features,
                device=device or self._device,
                keep_original_indices=True,
            )

        def create_lookup(self, *_: Any, **__: Any) -> PooledLookup:
            return make_lookup(_local_tables(self), Sharding.ROW_WISE)

    return {
        Sharding.TABLE_WISE: TableWise,
        Sharding.COLUMN_WISE: ColumnWise,
        Sharding.DATA_PARALLEL: DataParallel,
        Sharding.ROW_WISE: RowWise,
    }


def _collection_class(make_lookup: MakeLookup) -> type[ShardedEmbeddingBagCollection]:
    classes = _sharding_classes(make_lookup)

    class Collection(ShardedEmbeddingBagCollection):
        _has_uninitialized_input_dist: bool

        @classmethod
        def create_embedding_bag_sharding(
            cls, sharding_infos: Any, env: Any, device: Any = None, permute_embeddings: bool = False, **_: Any
        ) -> Any:
            kind = sharding_infos[0].param_sharding.sharding_type
            further = {"permute_embeddings": True} if kind == Sharding.COLUMN_WISE and permute_embeddings else {}
            return classes[kind](sharding_infos, env, device, **further)

        def forward(self, features: KeyedJaggedTensor) -> Any:
            """Look up, as ``ShardedModule.forward`` does; the profiler sees what traffic is for."""
            context = self.create_context()
            with traffic("input"):
                arrived = self.input_dist(context, features).wait().wait()
            with traffic("embedding_exchange"):
                return self.compute_and_output_dist(context, arrived)

        def input_dist(self, ctx: Any, features: Any) -> Any:
            """Begin the exchange of keys, without TorchRec's check of their range: hash tables take any."""
            if self._has_uninitialized_input_dist:
                self._create_input_dist(features.keys())
                self._has_uninitialized_input_dist = False
            return super().input_dist(ctx, features)

        def init_data_parallel(self) -> None:
            """Leave data-parallel lookups alone: their stores sum the gradients."""

        def _initialize_torch_state(self, skip_registering: bool = False) -> None:
            """Register nothing: rows are no parameters, and are saved by key."""

    return Collection


def _shards(sharded: ShardedTable, num_ranks: int, device: torch.device) -> list[ShardMetadata]:
    width = sharded.table.width
    if sharded.sharding is Sharding.ROW_WISE:
        block = -(-VIRTUAL_ROWS // num_ranks)
        parts = [([rank * block, 0], [min(block, VIRTUAL_ROWS - rank * block), width]) for rank in sharded.ranks]
    else:
        columns = width // len(sharded.ranks)
        parts = [([0, number * columns], [VIRTUAL_ROWS, columns]) for number in range(len(sharded.ranks))]
    return [
        ShardMetadata(shard_offsets=offsets, shard_sizes=sizes, placement=f"rank:{rank}/{device}")
        for rank, (offsets, sizes) in zip(sharded.ranks, parts, strict=True)
    ]


@contextmanager
def _without_remarks_on_caches() -> Iterator[None]:
    """Keep TorchRec from remarking, table by table, that data-parallel ones have no cache on the GPU."""
    logger = logging.getLogger("torchrec.distributed.utils")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def shard_tables(
    tables: tuple[ShardedTable, ...],
    features: Sequence[list[str]],
    make_lookup: MakeLookup,
    *,
    device: torch.device,
    group: Any,
) -> ShardedEmbeddingBagCollection:
    """Return TorchRec's sharded collection of the tables; ``features`` are each table's slots by name."""
    num_ranks = torch.distributed.get_world_size(group)
    collection = EmbeddingBagCollection(
        tables=[
            EmbeddingBagConfig(
                num_embeddings=VIRTUAL_ROWS,
                embedding_dim=sharded.table.width,
                name=str(number),
                feature_names=features[number],
                pooling=PoolingType.SUM,
            )
            for number, sharded in enumerate(tables)
        ],
        device=torch.device("meta"),
    )
    plan = {
        str(number): ParameterSharding(
            sharding_type=str(sharded.sharding),
            compute_kernel=EmbeddingComputeKernel.FUSED.value,
            ranks=list(sharded.ranks),
            sharding_spec=None
            if sharded.sharding is Sharding.DATA_PARALLEL
            else EnumerableShardingSpec(_shards(sharded, num_ranks, device)),
        )
        for number, sharded in enumerate(tables)
    }
    with _without_remarks_on_caches():
        return _collection_class(make_lookup)(collection, plan, ShardingEnv.from_process_group(group), device=device)
