"""Embedding layers in files: sparse models and their optimizers' states, raw binary as HugeCTR's.

A sparse model is one record per row: key, vector of float32; of localized layers key, slot, vector. Keys have the 32
or 64 bits of the input, slots 64. States are the same with the states' vectors in place of the row's, Adam's m before
v, and at last, for LazyGlobal updates, the step of the row's last update in 64 bits. Optimizers without states leave
an empty file. Records come in any order.

Source of the sparse model: HugeCTR, ``download_params_to_files`` and the parameter server that reads it.

Every rank reads and writes its part of one file, so all ranks share a file system.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from hugectr.embedding.hashed_rows import HashedRows
from hugectr.embedding.records import Records, record_type, reset
from hugectr.embedding.row_store import TableRows
from hugectr.embedding.sharded_embeddings import ShardedEmbeddings
from hugectr.exceptions import DataError
from predictor.recommender.workload.embedding import EmbeddingKind, EmbeddingLayer

ROWS_AT_ONCE = 1 << 18


@dataclass(frozen=True, slots=True)
class _Layout:
    """A kind of file of one layer.

    Attributes:
        fields: of the rows' records that the file holds.
        record: type of the file's records.
        columns: of a whole row.
    """

    fields: tuple[str, ...]
    record: np.dtype[Any]
    columns: int


def _layout(layer: EmbeddingLayer, rows: np.dtype[Any], fields: tuple[str, ...], is_64_bit: bool) -> _Layout:
    head: list[Any] = [("key", "<i8" if is_64_bit else "<u4")]
    if layer.kind is not EmbeddingKind.DISTRIBUTED:
        head.append(("slot", "<u8"))
    body = [(name, "<f4", (layer.width,)) if rows[name].shape else (name, "<i8") for name in fields]
    return _Layout(fields, np.dtype(head + body), layer.width)


class EmbeddingFiles:
    """Reads and writes the files of all layers of a model; every method is called by all ranks together."""

    def __init__(self, embeddings: ShardedEmbeddings, *, is_64_bit: bool) -> None:
        """Keep whose files they are; ``is_64_bit`` is the width of keys."""
        self._embeddings = embeddings
        self._is_64_bit = is_64_bit

    def save_models(self, paths: list[Path]) -> None:
        """Write the rows of every layer, a file each, in the order of the model's layers.

        Raises:
            DataError: a key does not fit 32 bits.
        """
        self._each(paths, self._save, lambda _: ("vector",))

    def save_states(self, paths: list[Path]) -> None:
        """Write the optimizer's states of every layer, a file each."""
        self._each(paths, self._save, self._state_fields)

    def load_models(self, paths: list[Path]) -> None:
        """Replace all rows by those of files; their optimizers begin anew.

        Raises:
            DataError: a file is missing or torn, or has keys that the tables do not take.
        """
        for rows in self._tables():
            if isinstance(rows, HashedRows):
                rows.clear()
                if rows.source is not None:
                    rows.source.clear()
            else:
                reset(rows.table, rows.used)
        self._each(paths, self._load, lambda _: ("vector",))

    def load_states(self, paths: list[Path]) -> None:
        """Set the optimizers' states from files, whose rows were loaded before.

        Raises:
            DataError: a file is missing or torn, or is another optimizer's.
        """
        self._each(paths, self._load, self._state_fields)

    def check_pairs(self, models: list[Path], states: list[Path]) -> None:
        """Check that each layer's files have the same number of rows, as files of one iteration do.

        Raises:
            DataError: one is missing, torn or of another iteration.
        """
        for layer, *pair in zip(self._embeddings.model.embeddings, models, states, strict=True):
            counts = []
            for path, fields in zip(pair, (("vector",), self._state_fields(layer)), strict=True):
                if not path.exists():
                    raise DataError(f"{path} does not exist; expected a file of layer {layer.name}")
                row_bytes = _layout(layer, self._row_type(layer), fields, self._is_64_bit).record.itemsize
                counts.append(path.stat().st_size // row_bytes if fields else None)
            if None not in counts and counts[0] != counts[1]:
                raise DataError(
                    f"{pair[0]} has {counts[0]} rows of {layer.name} and {pair[1]} has {counts[1]}; one is torn or of "
                    "another iteration"
                )

    def _each(
        self,
        paths: list[Path],
        act: Callable[[EmbeddingLayer, Path, tuple[str, ...]], None],
        fields: Callable[[EmbeddingLayer], tuple[str, ...]],
    ) -> None:
        layers = self._embeddings.model.embeddings
        if len(paths) != len(layers):
            raise DataError(f"{len(paths)} files for {len(layers)} embedding layers; give each layer its own")
        for layer, path in zip(layers, paths, strict=True):
            act(layer, path, fields(layer))

    def _tables(self, layer: str | None = None) -> Iterator[TableRows]:
        for store in self._embeddings.stores:
            for rows in store.tables:
                if layer is None or rows.shard.layer == layer:
                    yield rows

    def _state_fields(self, layer: EmbeddingLayer) -> tuple[str, ...]:
        names = self._row_type(layer).names or ()
        return tuple(name for name in names if name not in ("key", "slot", "vector"))

    def _row_type(self, layer: EmbeddingLayer) -> np.dtype[Any]:
        optimizer = layer.optimizer or self._embeddings.model.optimizer
        return record_type(optimizer, layer.width)

    def _save(self, layer: EmbeddingLayer, path: Path, fields: tuple[str, ...]) -> None:
        group, rank = self._embeddings.group, self._embeddings.rank
        layout = _layout(layer, self._row_type(layer), fields, self._is_64_bit)
        parts = [(rows, rows.export()) for rows in self._tables(layer.name)] if fields else []
        names = [sharded.table.name for sharded in self._embeddings.plan.tables if sharded.table.layer == layer.name]
        counts = torch.zeros(len(names), dist.get_world_size(group), dtype=torch.int64)
        for rows, records in parts:
            if rows.shard.columns.start == 0 and (rank == 0 or not rows.shard.is_copied):
                counts[names.index(rows.shard.name), rank] = len(records)
        dist.all_reduce(counts, group=group)
        total = int(counts.sum())
        partial = path.with_name(path.name + ".partial")
        if rank == 0:
            path.parent.mkdir(parents=True, exist_ok=True)
            with partial.open("wb") as file:
                file.truncate(total * layout.record.itemsize)
        dist.barrier(group=group)
        starts = (counts.flatten().cumsum(0) - counts.flatten()).view_as(counts)
        for rows, records in parts:
            if len(records) and (rank == 0 or not rows.shard.is_copied):
                table = names.index(rows.shard.name)
                leader = rank if rows.shard.columns.start == 0 else int(counts[table].argmax())
                self._write(partial, int(starts[table, leader]), layout, rows, records)
        dist.barrier(group=group)
        if rank == 0:
            partial.replace(path)
        dist.barrier(group=group)

    def _write(self, path: Path, start: int, layout: _Layout, rows: TableRows, records: Records) -> None:
        if not self._is_64_bit and (records["key"].min() < 0 or records["key"].max() > np.iinfo(np.uint32).max):
            raise DataError(f"{path}: {rows.shard.name} has keys of more than 32 bits; train with i64_input_key")
        file = np.memmap(path, layout.record, "r+")
        own = file[start : start + len(records)]
        if rows.shard.columns.start == 0:
            for name in ("key", "slot"):
                if name in (layout.record.names or ()):
                    own[name] = records[name]
        for name in layout.fields:
            if own[name].ndim == 1:
                own[name] = records[name]
            else:
                own[name][:, rows.shard.columns.start : rows.shard.columns.stop] = records[name]
        file.flush()

    def _load(self, layer: EmbeddingLayer, path: Path, fields: tuple[str, ...]) -> None:
        layout = _layout(layer, self._row_type(layer), fields, self._is_64_bit)
        try:
            size = path.stat().st_size
        except FileNotFoundError:
            raise DataError(f"{path} does not exist; expected a file of layer {layer.name}") from None
        if not fields or not size:
            if size:
                raise DataError(f"{path} has {size} bytes; the optimizer of {layer.name} has no states")
            return
        if size % layout.record.itemsize:
            raise DataError(
                f"{path} has {size} bytes, no multiple of the {layout.record.itemsize} of a row of {layer.name}; it is "
                "torn, or of another layer, optimizer or width of keys"
            )
        file = np.memmap(path, layout.record, "r")
        for rows in self._tables(layer.name):
            at_once = ROWS_AT_ONCE
            if isinstance(rows, HashedRows) and rows.source is not None:
                at_once = min(at_once, rows.shard.capacity)
            for start in range(0, len(file), at_once):
                if isinstance(rows, HashedRows) and rows.source is not None:
                    rows.unload()
                self._restore(rows, file[start : start + at_once], layout)

    def _restore(self, rows: TableRows, records: Records, layout: _Layout) -> None:
        keys = torch.from_numpy(records["key"].astype(np.int64))
        if "slot" in (layout.record.names or ()):
            slots = torch.from_numpy(records["slot"].astype(np.int64))
            own = rows.shard.owned(keys) & torch.isin(slots, torch.tensor(rows.shard.slots))
        else:
            slots, own = torch.full_like(keys, rows.shard.slots[0]), rows.shard.owned(keys)
        numbers = own.numpy().nonzero()[0]
        chosen = np.empty(len(numbers), [(name, *_part(layout.record[name], rows)) for name in layout.fields])
        for name in layout.fields:
            values = records[name][numbers]
            chosen[name] = values if values.ndim == 1 else values[:, rows.shard.columns.start : rows.shard.columns.stop]
        device = rows.table.weights.device
        rows.restore(keys[own].to(device), slots[own].to(device), chosen)


def _part(field: np.dtype[Any], rows: TableRows) -> tuple[Any, ...]:
    return ("<f4", (rows.shard.width,)) if field.shape else ("<i8",)
