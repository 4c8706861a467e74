"""Data in an order that depends on seed and epoch alone, from any batch on.

Samplers draw from a seed of the epoch. Every batch has a seed of its own, from which the process that fetches it draws
(a worker or the main process), so augmentation is the same whichever worker has the batch, whatever came before it and
however many workers there are; what fetching draws with torch or NumPy is not missing in training. Batches already
seen are skipped as indices; nothing of them is read. A data set that can only be iterated, or a loader of a class of
its own, is read again up to the place instead.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from lightning_fabric import Fabric
from numpy.random import mtrand
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from torch.utils.data._utils.pin_memory import pin_memory

from model_training_framework.trainer.errors import TrainerError
from model_training_framework.trainer.rng import RandomStream, derive_seed, preserved_rng, seed_host
from model_training_framework.trainer.shares import KEPT, shared_out

DRAWN_AT_ONCE = 1024  # batches of indices; saving and restoring generators costs as much as some of them


class Draw(NamedTuple):
    """A batch to be fetched: its seed, and its indices (one index where the loader makes no batches)."""

    seed: int
    indices: Any


class SeededDataset:
    """A map-style data set whose batches are drawn from seeds of their own; otherwise the data set itself."""

    def __init__(self, dataset: Any) -> None:
        """Wrap a data set."""
        self.dataset = dataset

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.dataset)

    def __getitem__(self, draw: Draw) -> Any:
        """Return a sample, of a loader that makes no batches."""
        seed_host(draw.seed)
        return self.dataset[draw.indices]

    def __getitems__(self, draw: Draw) -> Any:
        """Return the samples of a batch."""
        seed_host(draw.seed)
        dataset = self.dataset
        together = getattr(dataset, "__getitems__", None)
        return together(draw.indices) if together else [dataset[index] for index in draw.indices]

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the data set, for a worker_init_fn that looks at it."""
        if name.startswith("__") or name == "dataset":
            raise AttributeError(name)
        return getattr(self.dataset, name)


class WorkerStart:
    """What a worker does first: outlive signals that end a run by as long as its trainer may need batches."""

    def __init__(self, user: Callable[[int], None] | None, grace_s: float) -> None:
        """Wrap a user's worker_init_fn."""
        self._user = user
        self._grace_s = grace_s

    def __call__(self, worker: int) -> None:
        """Prepare a worker."""

        def end_later(*_: object) -> None:
            signal.alarm(max(1, round(self._grace_s)))

        for number in (signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, end_later)
        if self._user is not None:
            info = get_worker_info()
            if info is not None and isinstance(info.dataset, SeededDataset):
                wrapper, info.dataset = info.dataset, info.dataset.dataset
                try:
                    self._user(worker)
                finally:
                    info.dataset = wrapper
            else:
                self._user(worker)


class Order:
    """Batches of indices of one epoch, each with its seed; iterated in the main process only."""

    def __init__(self, sampler: Any, generators: list[torch.Generator], seed: int, rank: int) -> None:
        """Take over a sampler or batch sampler and the generators that it draws from."""
        self._sampler = sampler
        self._generators = [(generator, generator.initial_seed()) for generator in generators]
        self._seed = seed
        self._rank = rank
        self.epoch = 0
        self.start = 0

    def __len__(self) -> int:
        """Return the number of batches of a whole epoch."""
        return len(self._sampler)

    def seed_epoch(self) -> None:
        """Seed what decides the order of the epoch: alike on all ranks, which share the samples out by it."""
        seed = derive_seed(self._seed, "order", self.epoch)
        seed_host(seed)
        for generator, initial in self._generators:
            generator.manual_seed(derive_seed(seed, initial))
        samplers: tuple[Any, ...] = (self._sampler, getattr(self._sampler, "sampler", None))
        for sampler in samplers:
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(self.epoch)

    def __iter__(self) -> Iterator[Draw]:
        """Yield the batches from ``start`` on."""
        epoch, start, number = self.epoch, self.start, 0
        stream = RandomStream()
        with stream:
            self.seed_epoch()
            indices = iter(self._sampler)
        while True:
            with stream:
                drawn = list(islice(indices, DRAWN_AT_ONCE))
            if not drawn:
                return
            numbered = list(enumerate(drawn, number))[max(0, start - number) :]
            # one seed at a time would cost thirty times as much: the hash is out of the processor's caches then
            yield from [Draw(derive_seed(self._seed, "batch", epoch, self._rank, n), batch) for n, batch in numbered]
            number += len(drawn)


class EpochData:
    """A loader that gives the batches of any epoch from any place on."""

    def __init__(
        self,
        loader: Any,
        fabric: Fabric,
        seed: int,
        grace_s: float,
        rank: int | None = None,
        *,
        is_exact: bool = False,
    ) -> None:
        """Make a user's loader repeatable.

        Args:
            loader: a DataLoader, or anything that iterates over batches, the same ones each time.
            fabric: shares the samples of a DataLoader out over ranks.
            seed: of everything that is drawn.
            grace_s: how long workers outlive a signal, in seconds.
            rank: whose share of the samples this is, where ranks share one; this rank's by default.
            is_exact: give each sample to one rank once; otherwise all ranks have as many, some of them twice.

        Raises:
            TrainerError: it cannot be iterated.
        """
        if not hasattr(loader, "__iter__"):
            raise TrainerError(
                f"loader is a {type(loader).__name__}; it must be a DataLoader or an iterable of batches"
            )
        self._fabric = fabric
        self._rank = fabric.global_rank if rank is None else rank
        self._seed = seed
        self._moves = fabric.device.type != "cpu"
        self._given = loader
        self._filler: Any = None
        is_plain = type(loader) is DataLoader
        loader = shared_out(loader, fabric, seed, is_exact) if isinstance(loader, DataLoader) else loader
        sampler = getattr(loader, "batch_sampler", None)
        sampler = getattr(loader, "sampler", None) if sampler is None else sampler
        self._order = Order(sampler, _generators(loader, sampler), seed, self._rank)
        self._is_seekable = is_plain and not isinstance(loader.dataset, IterableDataset)
        self._has_workers = getattr(loader, "num_workers", 0) > 0
        self._loader = _rebuilt(loader, self._order, grace_s) if self._is_seekable else loader
        self.num_batches = _length(loader)

    def batches(self, epoch: int, start: int = 0) -> Iterator[Any]:
        """Yield the batches of an epoch from one on, on this rank's device."""
        batches = self._sought(epoch, start) if self._is_seekable else self._replayed(epoch, start)
        return map(self._fabric.to_device, batches) if self._moves else batches

    def filler(self) -> Any:
        """Return a batch for a rank that has no more of its own while others have: its forward pass joins theirs.

        Raises:
            TrainerError: the loader has no batch.
        """
        if self._filler is None:
            with preserved_rng():
                self._filler = next(iter(self._given), None)
        if self._filler is None:
            raise TrainerError(
                f"loader has no batch on rank {self._rank}, but others have; give every rank at least one"
            )
        return self._fabric.to_device(self._filler) if self._moves else self._filler

    def close(self) -> None:
        """End workers that the loader keeps from epoch to epoch; at exit Python would wait for them, in vain."""
        kept = getattr(self._loader, "_iterator", None)
        if kept is not None:
            kept._shutdown_workers()
            self._loader._iterator = None

    def _sought(self, epoch: int, start: int) -> Iterator[Any]:
        self._order.epoch, self._order.start = epoch, start
        if not self._has_workers:
            return _fetched_here(self._loader, self._order)
        with preserved_rng():  # the loader draws its workers' seeds
            return iter(self._loader)

    def _replayed(self, epoch: int, start: int) -> Iterator[Any]:
        self._order.epoch = epoch
        stream = RandomStream()
        with stream:
            self._order.seed_epoch()
            seed_host(derive_seed(self._seed, "stream", epoch, self._rank))
            batches = iter(self._loader)
        end = object()
        number = 0
        while True:
            with stream:
                batch = next(batches, end)
            if batch is end:
                return
            if number >= start:
                yield batch
            number += 1


def _fetched_here(loader: Any, order: Order) -> Iterator[Any]:
    """Fetch in this process without a trace in the random numbers that training draws.

    It does what the loader's own iterator does, and less of what only workers need: that and the exchange of the
    generators are what a fetch costs beside reading and collating.
    """
    dataset, collate, pin = loader.dataset, loader.collate_fn, _pinned if loader.pin_memory else None
    fetch = dataset.__getitems__ if loader.batch_sampler is not None else dataset.__getitem__
    generator = torch.default_generator
    get_bit_generator, set_bit_generator = mtrand.get_bit_generator, mtrand.set_bit_generator
    numpy = np.random.MT19937()
    for draw in order:
        outer_python, outer_numpy, outer_torch = random.getstate(), get_bit_generator(), generator.get_state()
        set_bit_generator(numpy)
        try:
            batch = collate(fetch(draw))
        finally:
            random.setstate(outer_python)
            set_bit_generator(outer_numpy)
            generator.set_state(outer_torch)
        yield batch if pin is None else pin(batch)


def _pinned(batch: Any) -> Any:
    """Copy a batch to memory that a GPU reads directly, where there is one."""
    return pin_memory(batch) if torch.accelerator.is_available() else batch


def _length(loader: Any) -> int | None:
    """Return the number of batches of an epoch, where the loader knows it."""
    try:
        return len(loader)
    except TypeError:
        return None


def _generators(loader: Any, sampler: Any) -> list[torch.Generator]:
    """Return the different generators that a loader and its samplers draw from."""
    holders = (loader, sampler, getattr(sampler, "sampler", None))
    found = (getattr(holder, "generator", None) for holder in holders)
    return list({id(one): one for one in found if isinstance(one, torch.Generator)}.values())


def _rebuilt(loader: Any, order: Order, grace_s: float) -> DataLoader[Any]:
    """Return a DataLoader like the given one that fetches what ``order`` says."""
    options = {name: getattr(loader, name) for name in KEPT}
    sampling = {"batch_sampler": order} if loader.batch_sampler is not None else {"sampler": order, "batch_size": None}
    start = WorkerStart(loader.worker_init_fn, grace_s)
    return DataLoader(SeededDataset(loader.dataset), worker_init_fn=start, **sampling, **options)
