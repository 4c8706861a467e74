"""Positions of one table's keys among the rows of a store."""

from __future__ import annotations

from collections.abc import Sequence

from hugectr.embedding.direct_rows import DirectRows, DirectSlots
from hugectr.embedding.hashed_rows import HashedRows
from hugectr.embedding.shard import Shard
from hugectr.embedding.update_rules import RowStates

TableRows = DirectRows | HashedRows


def make_rows(shard: Shard, first_row: int, table: RowStates, seed: int) -> TableRows:
    """Return the rows of a shard, which begin at ``first_row`` of the store's."""
    return (DirectRows if shard.known else HashedRows)(shard, first_row, table, seed)


def direct_slots(tables: Sequence[TableRows]) -> DirectSlots | None:
    """Return the slots of tables whose rows are all direct and not shared out by key; None where some are not."""
    direct = [table for table in tables if isinstance(table, DirectRows) and table.shard.parts == 1]
    return DirectSlots(direct) if len(direct) == len(tables) else None
