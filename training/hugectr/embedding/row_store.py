"""Rows of several tables of one width and one optimizer, looked up, pooled and updated together."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch.nn import functional

from hugectr.embedding.direct_rows import DirectRows, DirectSlots
from hugectr.embedding.hashed_rows import HashedRows
from hugectr.embedding.shard import Shard
from hugectr.embedding.update_rules import RowStates, update_rows
from hugectr.operator_scopes import operator
from predictor.recommender.workload.optimizer import Optimizer

TableRows = DirectRows | HashedRows


def make_rows(shard: Shard, first_row: int, table: RowStates, seed: int) -> TableRows:
    """Return the rows of a shard, which begin at ``first_row`` of the store's."""
    return (DirectRows if shard.known else HashedRows)(shard, first_row, table, seed)


def direct_slots(tables: Sequence[TableRows]) -> DirectSlots | None:
    """Return the slots of tables whose rows are all direct and not shared out by key; None where some are not."""
    direct = [table for table in tables if isinstance(table, DirectRows) and table.shard.parts == 1]
    return DirectSlots(direct) if len(direct) == len(tables) else None


class RowStore:
    """The rows of shards side by side in one tensor, behind them a row of zeros for keys without one.

    Attributes:
        tables: the shards' rows, in order.
        table: weights and optimizer states.
    """

    def __init__(self, shards: Sequence[Shard], optimizer: Optimizer | None, device: torch.device, seed: int) -> None:
        """Allocate the rows of all shards."""
        self.width = shards[0].width
        capacity = sum(shard.capacity for shard in shards)
        self.table = RowStates(optimizer, capacity + 1, self.width, device)
        self.table.weights[-1] = 0.0
        self.zero_row = capacity
        self.tables: list[TableRows] = []
        first = 0
        for shard in shards:
            self.tables.append(make_rows(shard, first, self.table, seed))
            first += shard.capacity
        self._direct = direct_slots(self.tables)
        self.replicas: dist.ProcessGroup | None = None
        self._pending: list[tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]] = []

    @property
    def num_features(self) -> int:
        """Return the slots that look up here."""
        return sum(len(rows.shard.slots) for rows in self.tables)

    def rows_of(self, keys: torch.Tensor, slot_lengths: Sequence[int], *, insert: bool) -> torch.Tensor:
        """Return the int32 rows of keys, which lie by slot, so many of each."""
        if self._direct is not None:
            rows = self._direct.rows_of(keys, slot_lengths)
            if rows is not None:
                return rows
        lengths, first = [], 0
        for table in self.tables:
            lengths.append(slot_lengths[first : first + len(table.shard.slots)])
            first += len(table.shard.slots)
        parts = keys.split([sum(own) for own in lengths])
        if self.replicas is not None:
            self._agree_on_rows(parts, lengths, insert=insert)
        rows_by_table = [
            table.rows_of(some, own, insert=insert)
            for table, some, own in zip(self.tables, parts, lengths, strict=True)
        ]
        return rows_by_table[0] if len(rows_by_table) == 1 else torch.cat(rows_by_table)

    def pool(self, rows: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        """Return the sum of every bag's rows, (bags, width)."""
        return functional.embedding_bag(rows, self.table.weights, offsets, mode="sum", include_last_offset=True)

    def add_gradient(self, rows: torch.Tensor, lengths: torch.Tensor | None, gradients: torch.Tensor) -> None:
        """Keep the gradients of pooled bags, which held ``lengths`` of the rows one after another; None: one each."""
        self._pending.append((rows, lengths, gradients))

    def drop_gradients(self) -> None:
        """Forget the gradients of this step."""
        self._pending.clear()

    def has_finite_gradients(self) -> bool:
        """Return whether no gradient of this step is infinite or not a number."""
        return all(bool(torch.isfinite(gradients).all()) for _, _, gradients in self._pending)

    def update(self, rate: float, scale: float, step: int) -> None:
        """Apply the gradients, which were multiplied by ``scale``, and forget them."""
        with operator("embedding_update"):
            rows, gradients = self._merged()
        if self.replicas is not None:
            rows, gradients = self._summed_over_replicas(rows, gradients)
        with operator("embedding_update"):
            if scale != 1.0:
                gradients.div_(scale)
            update_rows(self.table, rows, gradients, [rows.used for rows in self.tables], rate, step)
        if self.table.missed_steps is not None:
            self.table.missed_steps.add(rate, step)
        self._pending.clear()

    def _merged(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the rows that were looked up, each once in rising order, and the sums of their gradients."""
        if not self._pending:
            empty = torch.empty(0, dtype=torch.int64, device=self.table.weights.device)
            return empty, self.table.weights.new_empty(0, self.width)
        rows, bags, gradients = self._lookups_of_step()
        order, source = torch.sort(rows, stable=True)  # a radix sort for int32
        is_first = torch.ones(len(order), dtype=torch.bool, device=order.device)
        torch.ne(order[1:], order[:-1], out=is_first[1:])
        starts = is_first.nonzero().squeeze(1)
        touched = order.index_select(0, starts).to(torch.int64)
        # The sums are pooled look-ups themselves: a row's bag holds the gradients of the bags that it was in.
        members = source.to(torch.int32) if bags is None else bags.index_select(0, source)
        sums = functional.embedding_bag(members, gradients, starts.to(torch.int32), mode="sum")
        if len(touched) and int(touched[-1]) == self.zero_row:
            touched, sums = touched[:-1], sums[:-1]
        return touched, sums

    def _lookups_of_step(self) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
        """Return the rows that were looked up, the bag of each (None: its own), and the bags' gradients."""
        if len(self._pending) == 1 and self._pending[0][1] is None:
            rows, _, gradients = self._pending[0]
            return rows, None, gradients.to(torch.float32)
        members, first = [], 0
        for rows, lengths, gradients in self._pending:
            bags = torch.arange(first, first + len(gradients), dtype=torch.int32, device=rows.device)
            members.append(bags if lengths is None else torch.repeat_interleave(bags, lengths, output_size=len(rows)))
            first += len(gradients)
        every = torch.cat([gradients.to(torch.float32) for _, _, gradients in self._pending])
        return torch.cat([rows for rows, _, _ in self._pending]), torch.cat(members), every

    def _summed_over_replicas(self, rows: torch.Tensor, gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the rows that any rank looked up and the mean over ranks of their gradients.

        All rows with keys travel, as a data-parallel network's gradients do, and one more column that counts who
        looked up.
        """
        end = max(rows.used.stop for rows in self.tables)
        every = torch.zeros(end, self.width + 1, device=gradients.device)
        every[rows, : self.width] = gradients
        every[rows, self.width] = 1.0
        dist.all_reduce(every, group=self.replicas)
        touched = every[:, self.width].nonzero().squeeze(1)
        return touched, every.index_select(0, touched)[:, : self.width] / dist.get_world_size(self.replicas)

    def _agree_on_rows(self, keys: Sequence[torch.Tensor], lengths: Sequence[Sequence[int]], *, insert: bool) -> None:
        """Give keys that any rank looks up their rows, in one order on all ranks."""
        for table, some, slot_lengths in zip(self.tables, keys, lengths, strict=True):
            if not isinstance(table, HashedRows):
                continue
            if insert:
                slots = table.slots_of(slot_lengths)
                new, slots_of_new = self._of_all_replicas(*table.new_keys(some, slots))
                if table.is_too_full_for(len(new)):
                    table.unload()
                    new, slots_of_new = self._of_all_replicas(*table.new_keys(some, slots))
                table.insert(new, slots_of_new)
            elif table.source is not None:
                stored = table.stored(torch.unique(some))
                table.load(self._of_all_replicas(stored, torch.zeros_like(stored))[0])

    def _of_all_replicas(self, keys: torch.Tensor, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the keys of all ranks, sorted, each once, with their slots."""
        ranks = dist.get_world_size(self.replicas)
        counts = torch.zeros(ranks, dtype=torch.int64, device=keys.device)
        counts[dist.get_rank(self.replicas)] = len(keys)
        dist.all_reduce(counts, group=self.replicas)
        longest = int(counts.max())
        if not longest:
            return keys, slots
        padded = functional.pad(torch.stack([keys, slots]), (0, longest - len(keys)))
        gathered = [torch.empty_like(padded) for _ in range(ranks)]
        dist.all_gather(gathered, padded, group=self.replicas)
        pairs = torch.cat([part[:, : int(n)] for part, n in zip(gathered, counts, strict=True)], dim=1)
        different, numbers = torch.unique(pairs[0], return_inverse=True)
        slots = torch.empty_like(different)
        slots[numbers] = pairs[1]
        return different, slots
