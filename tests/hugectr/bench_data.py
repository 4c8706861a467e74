"""Measure how fast data sets are read and written: ``python -m tests.hugectr.bench_data``. Prints; decides no test.

Samples of 1 label, 13 dense features and 26 slots, as in Criteo's data; one rank reads, from the page cache.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from hugectr.data.file_list import write_file_list
from hugectr.data.norm import write_norm
from hugectr.data.parquet import write_parquet
from hugectr.data.raw import write_raw
from hugectr.data.readers import make_reader
from hugectr.data.samples import Samples
from predictor.recommender.hugectr.sections import Data
from tests.hugectr.data_made import data_layer, some_samples

FILES, SAMPLES, SLOTS, BATCH, ROUNDS = 4, 40960, 26, 8192, 5


class Case(NamedTuple):
    """A data set to measure."""

    name: str
    max_nnz: int
    is_64_bit: bool
    write: Callable[[Path, list[Samples]], Data]


def _layer(source: Path, **changes: object) -> Data:
    return data_layer(source, {"data1": SLOTS}, dense={"dense_dim": 13}, **changes)


def _norm(is_64_bit: bool, is_checked: bool) -> Callable[[Path, list[Samples]], Data]:
    def write(folder: Path, parts: list[Samples]) -> Data:
        paths = [folder / f"{number}.data" for number in range(len(parts))]
        for path, part in zip(paths, parts, strict=True):
            write_norm(path, part, is_64_bit=is_64_bit, is_checked=is_checked)
        write_file_list(folder / "list.txt", paths)
        return _layer(folder / "list.txt", check="Sum" if is_checked else "None")

    return write


def _raw(folder: Path, parts: list[Samples]) -> Data:
    write_raw(folder / "data.bin", parts, is_float=False)
    return _layer(folder / "data.bin", format="Raw", slot_size_array=[1000] * SLOTS)


def _parquet(folder: Path, parts: list[Samples]) -> Data:
    names = [f"{number}.parquet" for number in range(len(parts))]
    write_file_list(folder / "list.txt", write_parquet(folder, zip(names, parts, strict=True)))
    return _layer(folder / "list.txt", format="Parquet", slot_size_array=[1000] * SLOTS)


def cases() -> Iterator[Case]:
    """Yield what is measured."""
    for max_nnz in (1, 3):
        for is_checked in (True, False):
            for is_64_bit in (False, True):
                name = f"Norm, I{64 if is_64_bit else 32}, check {'Sum' if is_checked else 'None'}, 1 to {max_nnz} keys"
                yield Case(name, max_nnz, is_64_bit, _norm(is_64_bit, is_checked))
    yield Case("Raw", 1, False, _raw)
    yield Case("Parquet", 1, True, _parquet)


def _read(data: Data, is_64_bit: bool) -> int:
    reader = make_reader(
        data, source=data.source, batch_size=BATCH, rank=0, num_ranks=1, i64_input_key=is_64_bit, repeat=False,
        num_samples=None,
    )  # fmt: skip
    num_samples = 0
    while (batch := reader.next()) is not None:
        num_samples += batch.num_samples
    reader.close()
    return num_samples


def main() -> None:
    """Print a table."""
    print(f"{'data set':42}{'written':>14}{'read':>14}{'lowest':>14}{'highest':>14}   samples/s")
    for case in cases():
        parts = [some_samples(SAMPLES, SLOTS, case.max_nnz, dense_dim=13, seed=seed) for seed in range(FILES)]
        with tempfile.TemporaryDirectory() as folder:
            start = time.perf_counter()
            data = case.write(Path(folder), parts)
            written = FILES * SAMPLES / (time.perf_counter() - start)
            rates = []
            for _ in range(ROUNDS):
                start = time.perf_counter()
                num_samples = _read(data, case.is_64_bit)
                rates.append(num_samples / (time.perf_counter() - start))
        row = [written, statistics.median(rates), min(rates), max(rates)]
        print(f"{case.name:42}" + "".join(f"{rate:>14,.0f}" for rate in row))


if __name__ == "__main__":
    main()
