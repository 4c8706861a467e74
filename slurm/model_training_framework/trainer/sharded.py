"""Shards in a checkpoint: every rank writes its own, through torch.distributed.checkpoint.

Its index (offsets and sizes of every shard) is a pickle in torch; here it is JSON, so that reading it cannot run code.
Only tensors are handed to it; all else is in the shared part, where a shard is represented by its name.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.tensor import DTensor

from model_training_framework.trainer.checkpoint_files import FileEntry, entry_of
from model_training_framework.trainer.errors import CheckpointError
from model_training_framework.trainer.ranks import Ranks

FOLDER = "sharded"
INDEX = "index.json"
SHARD = "sharded tensor"  # key of what stands for a shard in the shared part


def split(state: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a state with its shards replaced by their names, and the shards by name."""
    shards: dict[str, Any] = {}

    def walk(value: Any, name: str) -> Any:
        if isinstance(value, DTensor):
            shards[name] = value.detach()
            return {SHARD: name}
        if type(value) in (list, tuple):
            return type(value)(walk(item, f"{name}.{i}") for i, item in enumerate(value))
        if isinstance(value, dict):
            return {key: walk(item, f"{name}.{key}" if name else str(key)) for key, item in value.items()}
        return value

    return walk(dict(state), ""), shards


def join(plain: Mapping[str, Any], read_shards: Callable[[list[str]], Mapping[str, Any]]) -> dict[str, Any]:
    """Return a state with the shards back in place."""
    names: list[str] = []

    def walk(value: Any, put: Mapping[str, Any] | None) -> Any:
        if type(value) in (list, tuple):
            return type(value)(walk(item, put) for item in value)
        if isinstance(value, dict):
            if list(value) == [SHARD]:
                names.append(value[SHARD])
                return put[value[SHARD]] if put is not None else value
            return {key: walk(item, put) for key, item in value.items()}
        return value

    walk(dict(plain), None)
    joined: dict[str, Any] = walk(dict(plain), read_shards(list(names))) if names else dict(plain)
    return joined


class JsonIndexWriter(dcp.FileSystemWriter):  # type: ignore[misc]
    """torch's writer, with an index that holds no code."""

    def finish(self, metadata: Metadata, results: list[list[Any]]) -> None:
        """Write the index: every tensor's type, size and chunks, and where each chunk is."""
        tensors = {
            name: {
                "dtype": str(one.properties.dtype).removeprefix("torch."),
                "size": list(one.size),
                "chunks": [[list(chunk.offsets), list(chunk.sizes)] for chunk in one.chunks],
            }
            for name, one in metadata.state_dict_metadata.items()
        }
        storage = [
            [r.index.fqn, list(r.index.offset), r.index.index, r.storage_data.relative_path, r.storage_data.offset,
             r.storage_data.length]
            for rank in results for r in rank
        ]  # fmt: skip
        with (Path(self.path) / INDEX).open("w", encoding="utf-8") as stream:
            json.dump({"tensors": tensors, "storage": storage}, stream)
            stream.flush()
            os.fsync(stream.fileno())


class JsonIndexReader(dcp.FileSystemReader):  # type: ignore[misc]
    """The reader to ``JsonIndexWriter``."""

    def read_metadata(self, *_args: Any, **_kwargs: Any) -> Metadata:
        """Read the index."""
        index = json.loads((Path(self.path) / INDEX).read_text(encoding="utf-8"))
        tensors = {
            name: TensorStorageMetadata(
                TensorProperties(dtype=getattr(torch, one["dtype"])),
                torch.Size(one["size"]),
                [ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes)) for offsets, sizes in one["chunks"]],
            )
            for name, one in index["tensors"].items()
        }
        storage = {
            MetadataIndex(name, offset, number): _StorageInfo(path, start, length)
            for name, offset, number, path, start, length in index["storage"]
        }
        return Metadata(tensors, storage_data=storage, planner_data={})


def write(building: Path, shards: Mapping[str, Any], ranks: Ranks) -> dict[str, FileEntry]:
    """Write this rank's shards and return its files by name; all ranks together."""
    folder = building / FOLDER
    planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    dcp.save(dict(shards), storage_writer=JsonIndexWriter(folder), planner=planner, process_group=ranks.group)
    if distributed.is_initialized():
        distributed.barrier(group=ranks.group)
    mine = sorted(folder.glob(f"__{ranks.rank}_*"))
    if ranks.is_first:
        mine.append(folder / INDEX)
    return {f"{FOLDER}/{path.name}": entry_of(path) for path in mine}


def read(path: Path, into: dict[str, Any], ranks: Ranks) -> dict[str, Any]:
    """Fill tensors with what was written, in whatever sharding they have; all ranks together.

    Raises:
        CheckpointError: it does not fit.
    """
    planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    try:
        dcp.load(into, storage_reader=JsonIndexReader(path / FOLDER), planner=planner, process_group=ranks.group)
    except dcp.api.CheckpointException as error:
        raise CheckpointError(f"{path / FOLDER} cannot be read: {str(error).splitlines()[0]}") from error
    return into
