"""Sharding plans: which ranks hold which part of every embedding table.

The ways are TorchRec's: a table whole on one rank, split by rows over all ranks or over some, split by columns, or a
copy on every rank whose gradients are summed like the dense network's.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from predictor.core.base.errors import ConfigError
from predictor.recommender.workload.embedding import EmbeddingKind, EmbeddingLayer, Table


class Sharding(StrEnum):
    """How a table lies on ranks; the values are TorchRec's ``ShardingType``."""

    TABLE_WISE = "table_wise"
    ROW_WISE = "row_wise"
    TABLE_ROW_WISE = "table_row_wise"
    COLUMN_WISE = "column_wise"
    DATA_PARALLEL = "data_parallel"


@dataclass(frozen=True, slots=True)
class ShardedTable:
    """A table and the ranks that hold it.

    Attributes:
        ranks: table-wise one; row-wise and data-parallel all, in order; table-row-wise those that hold equal parts of
            the rows, in ascending order; column-wise those that hold equal parts of the columns, in the columns' order.
    """

    table: Table
    sharding: Sharding
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ShardingPlan:
    """All tables of a model on so many ranks."""

    num_ranks: int
    tables: tuple[ShardedTable, ...]

    def check(self) -> None:
        """Check every table's ranks.

        Raises:
            ConfigError: a rank does not exist or is named twice, a table has the wrong number of ranks, or columns
                that cannot be split evenly.
        """
        for sharded in self.tables:
            name, ranks = sharded.table.name, sharded.ranks
            if not ranks or len(set(ranks)) != len(ranks) or not all(0 <= rank < self.num_ranks for rank in ranks):
                raise ConfigError(
                    f"plan of {name}: ranks are {list(ranks)}; expected different ones of 0 to {self.num_ranks - 1}"
                )
            if sharded.sharding is Sharding.TABLE_WISE and len(ranks) != 1:
                raise ConfigError(f"plan of {name}: table_wise is on one rank, not {len(ranks)}")
            if sharded.sharding in (Sharding.ROW_WISE, Sharding.DATA_PARALLEL) and ranks != tuple(
                range(self.num_ranks)
            ):
                raise ConfigError(f"plan of {name}: {sharded.sharding} is on all {self.num_ranks} ranks, in order")
            if sharded.sharding is Sharding.TABLE_ROW_WISE and list(ranks) != sorted(ranks):
                raise ConfigError(
                    f"plan of {name}: ranks are {list(ranks)}; table_row_wise takes them in ascending order"
                )
            if sharded.sharding is Sharding.COLUMN_WISE and sharded.table.width % (4 * len(ranks)):
                raise ConfigError(
                    f"plan of {name}: {sharded.table.width} columns do not split into {len(ranks)} parts of a multiple "
                    "of 4, as FBGEMM's kernels need"
                )


def default_plan(embeddings: tuple[EmbeddingLayer, ...], num_ranks: int) -> ShardingPlan:
    """Return HugeCTR's own placement: distributed tables by rows, slot i of a localized layer on rank i mod ranks."""
    sharded = []
    for layer in embeddings:
        for number, table in enumerate(layer.tables(num_ranks)):
            if layer.kind is EmbeddingKind.DISTRIBUTED and num_ranks > 1:
                sharded.append(ShardedTable(table, Sharding.ROW_WISE, tuple(range(num_ranks))))
            else:
                sharded.append(ShardedTable(table, Sharding.TABLE_WISE, (number % num_ranks,)))
    return ShardingPlan(num_ranks, tuple(sharded))
