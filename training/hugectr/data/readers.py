"""Readers: batches of a data set for one rank, read ahead by a thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

import torch

from hugectr.data.batch import Batch, SparseInput
from hugectr.data.samples import SampleFile, SampleLayout, Samples, joined, layout_of
from hugectr.data.sources import Source, check_key_width, open_source
from hugectr.exceptions import DataError, HugeCtrError
from predictor.recommender.hugectr.sections import Data

Item = TypeVar("Item")


class ReadAhead(Generic[Item]):
    """Items of an iterator, in order."""

    def __init__(self, items: Iterator[Item], depth: int = 3) -> None:
        """Begin to read; at most ``depth`` items wait to be used."""
        self._items = items
        self._pool = ThreadPoolExecutor(1, "data-reader")
        self._pending: deque[Future[Item | None]] = deque()
        for _ in range(depth):
            self._ask()

    def _ask(self) -> None:
        self._pending.append(self._pool.submit(next, self._items, None))

    def next(self) -> Item | None:
        """Return the next item; None after the last, and from then on.

        Raises:
            Exception: what the iterator raised, at its place in the order, and from then on.
        """
        item = self._pending[0].result()
        if item is not None:
            self._pending.popleft()
            self._ask()
        return item

    def close(self) -> None:
        """Stop reading and forget what was read."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._pending.clear()


class Share:
    """Which samples of each batch are a rank's.

    Attributes:
        batch_size: of all ranks together.
        num_ranks: that share each batch.
    """

    def __init__(self, batch_size: int, rank: int, num_ranks: int) -> None:
        """Check that ranks have equal shares."""
        if batch_size < 1 or batch_size % num_ranks:
            raise HugeCtrError(
                f"batchsize is {batch_size}; it must be a multiple of the {num_ranks} ranks, which share it evenly"
            )
        self.batch_size, self._rank, self.num_ranks = batch_size, rank, num_ranks

    def of(self, num_samples: int) -> tuple[int, int]:
        """Return where the rank's samples begin and end in a batch, which may be the shorter last one."""
        share = num_samples // self.num_ranks
        return self._rank * share, (self._rank + 1) * share


def batches(source: Source, share: Share, repeat: bool) -> Iterator[Samples]:
    """Yield the rank's samples of each batch; without ``repeat`` the last batch holds what is left.

    Samples that are too few for one on every rank are left out at the end.

    Raises:
        DataError: a file is not as it should be, or there are no samples at all, or too few for one on every rank.
    """
    parts: list[tuple[SampleFile, int, int]] = []
    held = 0
    num_batches = 0
    for file in _files(source, repeat):
        start = 0
        while start < file.num_samples:
            stop = min(file.num_samples, start + share.batch_size - held)
            parts.append((file, start, stop))
            held += stop - start
            start = stop
            if held == share.batch_size:
                yield _read(parts, *share.of(held))
                parts, held = [], 0
                num_batches += 1
    first, last = share.of(held)
    if last > first:
        yield _read(parts, first, last)
    elif not num_batches:
        raise DataError(
            f"{source.name} has {held} samples and the batch of {share.batch_size} is shared by {share.num_ranks} "
            "ranks, of which each needs a sample; name more data, or fewer GPUs"
        )


def _files(source: Source, repeat: bool) -> Iterator[SampleFile]:
    while True:
        num_samples = 0
        for open_file in source.files:
            file = open_file()
            num_samples += file.num_samples
            yield file
        if not num_samples:
            raise DataError(f"{source.name} has no samples: all its files are empty")
        if not repeat:
            return


def _read(parts: list[tuple[SampleFile, int, int]], first: int, last: int) -> Samples:
    """Return samples ``first`` to ``last`` of what the parts of files hold together."""
    pieces: list[Samples] = []
    before = 0
    for file, start, stop in parts:
        own_start, own_stop = max(start, start + first - before), min(stop, start + last - before)
        if own_stop > own_start:
            pieces.append(file.read(own_start, own_stop))
        before += stop - start
    return joined(pieces)


def as_batch(samples: Samples, layout: SampleLayout) -> Batch:
    """Return samples as tensors, keys by sparse input."""
    sparse: dict[str, SparseInput] = {}
    place = 0
    for name, first, last, *_ in layout.inputs:
        lengths = torch.from_numpy(samples.lengths[first:last].reshape(-1))
        count = int(samples.lengths[first:last].sum())
        sparse[name] = SparseInput(torch.from_numpy(samples.keys[place : place + count]), lengths)
        place += count
    return Batch(torch.from_numpy(samples.label), torch.from_numpy(samples.dense), sparse)


class Reader:
    """Reads batches in order, some of them ahead."""

    def __init__(
        self, data: Data, source: str, share: Share, *, is_64_bit: bool, repeat: bool, num_samples: int | None = None
    ) -> None:
        """Nothing is opened before ``start``; arguments are those of ``make_reader``."""
        check_key_width(data, is_64_bit)
        self._data, self._source, self._share = data, source, share
        self._is_64_bit, self._repeat, self._num_samples = is_64_bit, repeat, num_samples
        self._layout = layout_of(data)
        self._ahead: ReadAhead[Batch] | None = None

    def start(self) -> None:
        """Begin to read, from the start of the data; nothing where reading has begun.

        Raises:
            DataError: the source is missing or not of its format.
        """
        if self._ahead is None:
            self._read(self._open(self._source, self._num_samples))

    def _open(self, name: str, num_samples: int | None) -> Source:
        return open_source(self._data, name, is_64_bit=self._is_64_bit, num_samples=num_samples)

    def _read(self, source: Source) -> None:
        samples = batches(source, self._share, self._repeat)
        self._ahead = ReadAhead(as_batch(part, self._layout) for part in samples)

    def next(self) -> Batch | None:
        """Return the rank's share of the next batch; None at the end of the data, and from then on.

        Raises:
            DataError: a file is not as it should be; the message names the file and the place.
        """
        self.start()
        assert self._ahead is not None
        return self._ahead.next()

    def set_source(self, file_name: str = "") -> None:
        """Read from the start of another source, or of the same one.

        Raises:
            DataError: the source is missing or not of its format; the one before is read on.
        """
        name, num_samples = self._source, self._num_samples
        if file_name and file_name != name:
            name, num_samples = file_name, None  # num_samples is of the source before
        source = self._open(name, num_samples)
        self.close()
        self._source, self._num_samples = name, num_samples
        self._read(source)

    def close(self) -> None:
        """Stop reading; ``start`` begins anew."""
        if self._ahead is not None:
            self._ahead.close()
            self._ahead = None


def make_reader(
    data: Data,
    *,
    source: str,
    batch_size: int,
    rank: int,
    num_ranks: int,
    i64_input_key: bool,
    repeat: bool,
    num_samples: int | None,
) -> Reader:
    """Return a reader of a data layer's format.

    Args:
        data: the data layer.
        source: file list, or file, in place of the layer's own.
        batch_size: of all ranks together.
        rank: whose samples are wanted.
        num_ranks: that share each batch.
        i64_input_key: keys have 64 bits; otherwise 32.
        repeat: begin again at the end of the data.
        num_samples: of the source, in Raw data; None: as many as the file holds.

    Raises:
        HugeCtrError: the batch cannot be shared evenly, or the format has no such keys.
    """
    share = Share(batch_size, rank, num_ranks)
    return Reader(data, source, share, is_64_bit=i64_input_key, repeat=repeat, num_samples=num_samples)
