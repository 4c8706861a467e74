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
from itertools import cycle, islice
from typing import Any, NamedTuple

import numpy as np
import torch
from lightning_fabric import Fabric
from numpy.random import mtrand
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    get_worker_info,
)
from torch.utils.data._utils.pin_memory import pin_memory

from model_training_framework.trainer.errors import TrainerError
from model_training_framework.trainer.rng import RandomStream, derive_seed, preserved_rng, seed_host

DRAWN_AT_ONCE = 1024  # batches of indices; saving and restoring generators costs as much as some of them
KEPT = ("num_workers", "collate_fn", "pin_memory", "timeout", "multiprocessing_context", "prefetch_factor",
        "persistent_workers")  # fmt: skip


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


class Share(Sampler[int]):  # type: ignore[misc]
    """A rank's share of a sampler's samples: those of one step on all ranks are those of one step on a single rank.

    The first samples are given again at the end, where ranks do not divide them, so that every rank has as many.
    """

    def __init__(self, sampler: Any, num_replicas: int, rank: int) -> None:
        """Take a sampler that gives the same samples on every rank."""
        self._sampler = sampler
        self._num_replicas = num_replicas
        self._rank = rank

    @property
    def generator(self) -> Any:
        """Return what the sampler draws from."""
        return getattr(self._sampler, "generator", None)

    def __len__(self) -> int:
        """Return the number of samples of this rank."""
        return -(-len(self._sampler) // self._num_replicas)

    def __iter__(self) -> Iterator[int]:
        """Yield this rank's samples."""
        samples = list(self._sampler)
        count = len(self) * self._num_replicas
        return islice(cycle(samples), self._rank, count, self._num_replicas)


class EpochData:
    """A loader that gives the batches of any epoch from any place on."""

    def __init__(self, loader: Any, fabric: Fabric, seed: int, grace_s: float, rank: int | None = None) -> None:
        """Make a user's loader repeatable.

        Args:
            loader: a DataLoader, or anything that iterates over batches, the same ones each time.
            fabric: shares the samples of a DataLoader out over ranks.
            seed: of everything that is drawn.
            grace_s: how long workers outlive a signal, in seconds.
            rank: whose share of the samples this is, where ranks share one; this rank's by default.

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
        is_plain = type(loader) is DataLoader
        loader = _shared_out(loader, fabric, seed) if isinstance(loader, DataLoader) else loader
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


def _shared_out(loader: Any, fabric: Fabric, seed: int) -> Any:
    """Return a loader that gives each rank its share, in the order of the seed."""
    # ranks that all compute one model share nothing out
    shares = getattr(fabric.strategy, "distributed_sampler_kwargs", None) or {"num_replicas": 1}
    is_plain = type(loader) is DataLoader and (loader.batch_sampler is None) == (loader.batch_size is None)
    if shares["num_replicas"] > 1 and is_plain and type(loader.sampler) in (RandomSampler, SequentialSampler):
        share = Share(loader.sampler, **shares)
        options = {name: getattr(loader, name) for name in (*KEPT, "worker_init_fn", "batch_size", "drop_last")}
        return DataLoader(loader.dataset, sampler=share, generator=loader.generator, **options)
    is_distributed = isinstance(getattr(loader, "sampler", None), DistributedSampler)
    # Fabric's wrapper counts epochs by itself, from 0 in a resumed run too; the loader inside it has the sampler.
    shared: Any = fabric.setup_dataloaders(
        loader, use_distributed_sampler=shares["num_replicas"] > 1, move_to_device=False
    )._dataloader
    sampler = getattr(shared, "sampler", None)
    if isinstance(sampler, DistributedSampler) and not is_distributed:
        sampler.seed = derive_seed(seed, "share") >> 32
    return shared


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
