"""The embedding cache: rows of one model's table in device memory, before the parameter server."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from threading import Lock

import torch
from torch.nn import functional

from hugectr.exceptions import HugeCtrError
from hugectr.inference.device_cache import DeviceCache, Eviction
from hugectr.inference.parameter_server import ParameterServerBase
from predictor.recommender.workload.embedding import Combiner

NO_KEY = torch.iinfo(torch.int64).min  # no table has it


@dataclass(frozen=True, slots=True)
class CacheStatistics:
    """What a cache did so far.

    Attributes:
        lookups, hits: keys of requests, repeated ones each time, and those of them that the cache answered.
        unknown: lookups of keys that the table does not have.
        rows, capacity: rows that it holds, and has room for.
        evictions: rows that made room for others.
    """

    requests: int
    lookups: int
    hits: int
    unknown: int
    rows: int
    capacity: int
    evictions: int

    @property
    def hit_rate(self) -> float:
        """Return the share of lookups that the cache answered; 0 before the first."""
        return self.hits / self.lookups if self.lookups else 0.0


class EmbeddingCacheInterface:
    """Pools a model's embedding rows; ``CreateEmbeddingCache`` makes one. Safe to share between threads."""

    def __init__(
        self,
        parameter_server: ParameterServerBase,
        model_name: str,
        device_id: int,
        capacity: int,
        eviction: Eviction,
    ) -> None:
        """Make an empty cache of ``capacity`` rows; 0: every lookup goes to the parameter server."""
        self.model_name = model_name
        self.device_id = device_id
        self.i64_input_key = parameter_server.i64_input_key
        self.device = torch.device("cuda", device_id) if torch.cuda.is_available() else torch.device("cpu")
        self.model = parameter_server.model(model_name)
        self._table = parameter_server.table(model_name)
        self._mode = "mean" if self.model.embedding.combiner is Combiner.MEAN else "sum"
        columns = 2 if self._table.has_slots else 1
        self._cache = DeviceCache(capacity, self.model.embedding.width, columns, eviction, self.device)
        self._threshold = self.model.clause.hit_rate_threshold
        self._lock = Lock()
        self._requests = self._lookups = self._hits = self._unknown = 0

    @property
    def statistics(self) -> CacheStatistics:
        """Return what the cache did so far."""
        with self._lock:
            return CacheStatistics(
                self._requests,
                self._lookups,
                self._hits,
                self._unknown,
                self._cache.rows,
                self._cache.capacity,
                self._cache.evictions,
            )

    def pooled(self, keys: torch.Tensor, row_ptrs: torch.Tensor) -> torch.Tensor:
        """Return the (samples, slots, width) vectors of a request, on the device.

        Args:
            keys: (n,) int64, slot by slot within sample by sample, as in data of the configuration's format.
            row_ptrs: (samples · slots + 1,) int64, where each slot's keys begin, and the end.
        """
        num_slots = self.model.embedding.num_slots
        with self._lock:
            vectors = self._vectors(self._tags(keys, row_ptrs))
        everything = torch.arange(len(keys), device=self.device)
        pooled = functional.embedding_bag(
            everything, vectors, row_ptrs.to(self.device), mode=self._mode, include_last_offset=True
        )
        return pooled.view(-1, num_slots, vectors.shape[1])

    def _tags(self, keys: torch.Tensor, row_ptrs: torch.Tensor) -> torch.Tensor:
        """Return what the table knows the keys by: where they count from 0 in every slot, their place among all.

        They do so in Raw and Parquet data; in Norm data with slot sizes they count over all slots.
        """
        sizes = () if self.model.config.data.format == "Norm" else self.model.embedding.slot_rows
        if not sizes and not self._table.has_slots:
            return keys[:, None]
        num_slots = self.model.embedding.num_slots
        slots = torch.arange(num_slots).repeat((len(row_ptrs) - 1) // num_slots).repeat_interleave(row_ptrs.diff())
        if sizes:
            rows = torch.tensor(sizes)
            inside = (keys >= 0) & (keys < rows[slots])
            keys = torch.where(inside, keys + (rows.cumsum(0) - rows)[slots], NO_KEY)
        return torch.stack((keys, slots), dim=1) if self._table.has_slots else keys[:, None]

    def _vectors(self, tags: torch.Tensor) -> torch.Tensor:
        self._requests += 1
        self._lookups += len(tags)
        if not self._cache.capacity:
            vectors, known = self._table.lookup(tags)
            self._unknown += int((~known).sum())
            return vectors.to(self.device)
        tags = tags.to(self.device)
        positions = self._cache.find(tags)
        hit = positions >= 0
        num_hits = int(hit.sum())
        self._hits += num_hits
        if num_hits == len(tags):
            return self._cache.use(positions)
        vectors = torch.empty(len(tags), self.model.embedding.width, device=self.device)
        vectors[hit] = self._cache.use(positions[hit])
        vectors[~hit] = self._missed(tags[~hit], is_inserted=num_hits < self._threshold * len(tags))
        return vectors

    def _missed(self, tags: torch.Tensor, *, is_inserted: bool) -> torch.Tensor:
        distinct, inverse, uses = _distinct(tags)
        host_vectors, host_known = self._table.lookup(distinct)
        vectors, known = host_vectors.to(self.device), host_known.to(self.device)
        self._unknown += int(uses[~known].sum())
        if is_inserted:
            self._cache.insert(distinct[known], vectors[known], uses[known])
        return vectors[inverse]


def _distinct(tags: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the different tags, each one's number among them, and their counts."""
    if tags.shape[1] > 1:
        distinct, inverse, counts = torch.unique(tags, dim=0, return_inverse=True, return_counts=True)
        return distinct, inverse, counts
    keys, inverse, counts = torch.unique(tags[:, 0], return_inverse=True, return_counts=True)
    return keys[:, None], inverse, counts


def CreateEmbeddingCache(  # noqa: N802 - the documented name
    parameter_server: ParameterServerBase,
    cuda_dev_id: int,
    use_gpu_embedding_cache: bool,
    cache_size_percentage: float,
    model_config_path: str,
    model_name: str,
    i64_input_key: bool,
    eviction: str = "lru",
) -> EmbeddingCacheInterface:
    """Return the cache of one model on one device; without CUDA it is in the host's memory.

    Args:
        parameter_server: it holds the model's table.
        cuda_dev_id: GPU of the cache.
        use_gpu_embedding_cache: False: every lookup goes to the parameter server.
        cache_size_percentage: share of the table's rows that the cache has room for, 0 to 1.
        model_config_path: the model's configuration, the one that the parameter server read.
        model_name: of the model, at the parameter server.
        i64_input_key: as at the parameter server.
        eviction: "lru" or "lfu": the row of a full set that was used longest ago, or least often, makes room.

    Raises:
        HugeCtrError: an argument is not allowed, or does not agree with the parameter server's.
    """
    model = parameter_server.model(model_name)
    if model.path.resolve() != Path(model_config_path).resolve():
        raise HugeCtrError(
            f"model_config_path is {model_config_path}; the parameter server read {model.path} for model {model_name}"
        )
    if bool(i64_input_key) != parameter_server.i64_input_key:
        raise HugeCtrError(
            f"i64_input_key is {i64_input_key}; the parameter server's is {parameter_server.i64_input_key}"
        )
    if not 0.0 <= cache_size_percentage <= 1.0:
        raise HugeCtrError(
            f"cache_size_percentage is {cache_size_percentage}; expected a share of the rows from 0 to 1"
        )
    if eviction not in set(Eviction):
        raise HugeCtrError(f"eviction is {eviction!r}; expected {' or '.join(Eviction)}")
    _check_device(cuda_dev_id)
    rows = len(parameter_server.table(model_name))
    capacity = round(cache_size_percentage * rows) if use_gpu_embedding_cache else 0
    return EmbeddingCacheInterface(parameter_server, model_name, cuda_dev_id, capacity, Eviction(eviction))


def _check_device(device_id: int) -> None:
    count = torch.cuda.device_count() if torch.cuda.is_available() else None
    if device_id < 0 or (count is not None and device_id >= count):
        raise HugeCtrError(f"cuda_dev_id is {device_id}; expected 0 to {(count or 1) - 1}")
