"""Measure requests with the embedding cache on and off: ``python -m tests.hugectr.bench_inference``.

DCN of HugeCTR's notebook (26 slots of 16 columns, six cross layers, two hidden layers of 1024) with a table of 500 000
rows and keys of a power law. Prints the median and the 99th percentile of a request, samples per second, and the hit
rate beside the predicted one. Prints; timing decides no test. Without CUDA, cache and parameter server lie in the same
memory, so that only the way to find a row differs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from hugectr.inference import CreateEmbeddingCache, CreateParameterServer, InferenceSession, ParameterServerBase
from predictor.recommender.hugectr.reading import read_hugectr
from predictor.recommender.workload.cache import lru_hit_share
from predictor.recommender.workload.keys import KeyDistribution
from tests.hugectr.small_dcn import dcn

SLOTS, DENSE, WIDTH = 26, 13, 16
EXPONENT = 1.0
WARM_UP, REQUESTS = 20, 50
SAMPLES = (1, 64, 1024)
CACHES = ((None, "lru"), (0.05, "lru"), (0.05, "lfu"), (0.2, "lru"), (0.2, "lfu"), (1.0, "lru"))


class Drawn(NamedTuple):
    """Arguments of ``predict``."""

    dense: list[float]
    keys: list[int]
    row_ptrs: list[int]


def requests(samples: int, rows_per_slot: int, seed: int) -> Iterator[Drawn]:
    """Yield requests of one key a slot; each slot has keys of its own, by a power law."""
    random = np.random.default_rng(seed)
    chance = (1.0 + np.arange(rows_per_slot)) ** -EXPONENT
    edges = np.cumsum(chance / chance.sum())
    offsets = np.arange(SLOTS) * rows_per_slot
    scattered = [np.random.default_rng(slot).permutation(rows_per_slot) for slot in range(SLOTS)]
    while True:
        ranks = np.minimum(np.searchsorted(edges, random.random((samples, SLOTS))), rows_per_slot - 1)
        keys = np.stack([scattered[slot][ranks[:, slot]] for slot in range(SLOTS)], axis=1) + offsets
        dense = random.normal(size=samples * DENSE)
        yield Drawn(dense.tolist(), keys.ravel().tolist(), list(range(samples * SLOTS + 1)))


def write_files(folder: Path, rows: int) -> str:
    """Write a configuration, a dense model and a sparse model of random weights."""
    files = {"dense_model_file": str(folder / "dense.model"), "sparse_model_file": str(folder / "0_sparse.model")}
    content = dcn(inference={"max_batchsize": max(SAMPLES), **files})
    path = folder / "dcn.json"
    path.write_text(json.dumps(content))
    random = np.random.default_rng(0)
    parameters = read_hugectr(path).model.dense_parameters
    (0.01 * random.normal(size=parameters)).astype("<f4").tofile(files["dense_model_file"])
    table = np.zeros(rows, np.dtype([("key", "<u4"), ("vector", "<f4", (WIDTH,))]))
    table["key"] = np.arange(rows)
    table["vector"] = 0.01 * random.normal(size=(rows, WIDTH))
    table.tofile(files["sparse_model_file"])
    return str(path)


def measure(server: ParameterServerBase, config: str, samples: int, rows: int, share: float | None, policy: str) -> str:
    """Return a line of the table."""
    cache = CreateEmbeddingCache(server, 0, share is not None, share or 0.0, config, "dcn", False, policy)
    session = InferenceSession(config, 0, cache)
    drawn = requests(samples, rows // SLOTS, seed=1)
    rows_seen = 0
    while rows_seen < 3 * cache.statistics.capacity or rows_seen < WARM_UP * samples * SLOTS:
        request = next(drawn)  # a cache that is warm has seen several times its own size
        cache.pooled(torch.tensor(request.keys), torch.tensor(request.row_ptrs))
        rows_seen += len(request.keys)
    before = cache.statistics
    whole, lookups = [], []
    for _ in range(REQUESTS):
        request = next(drawn)
        started = time.perf_counter()
        session.predict(*request)
        whole.append(1e3 * (time.perf_counter() - started))
    after = cache.statistics
    for _ in range(REQUESTS):
        request = next(drawn)
        keys, row_ptrs = torch.tensor(request.keys), torch.tensor(request.row_ptrs)
        started = time.perf_counter()
        cache.pooled(keys, row_ptrs)
        lookups.append(1e3 * (time.perf_counter() - started))
    hits = (after.hits - before.hits) / (after.lookups - before.lookups)
    predicted = lru_hit_share(KeyDistribution(EXPONENT), (share or 0.0) * (rows // SLOTS), rows // SLOTS)
    told = "off" if share is None else f"{share:.0%} {policy}"
    return (
        f"{samples:8}{told:>10}{statistics.median(whole):12.3f}{np.percentile(whole, 99):10.3f}"
        f"{1e3 * samples / statistics.median(whole):12.0f}{statistics.median(lookups):12.3f}"
        f"{hits:10.1%}{predicted:16.1%}"
    )


def main(argv: list[str] | None = None) -> None:
    """Measure every size of request with every cache."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=500_000, help="of the table")
    arguments = parser.parse_args(argv)
    torch.set_num_threads(1)
    rows: Any = arguments.rows // SLOTS * SLOTS
    print(f"{'samples':>8}{'cache':>10}{'p50 (ms)':>12}{'p99':>10}{'samples/s':>12}{'lookup (ms)':>12}{'hits':>10}"
          f"{'predicted (LRU)':>16}")  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        config = write_files(Path(folder), rows)
        server = CreateParameterServer([config], ["dcn"], False)
        for samples in SAMPLES:
            for share, policy in CACHES:
                print(measure(server, config, samples, rows, share, policy), flush=True)


if __name__ == "__main__":
    main()
