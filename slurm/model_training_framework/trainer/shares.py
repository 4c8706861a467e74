"""Samples of a loader shared out over ranks: as many for each in training, each of them once in a validation."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle, islice
from typing import Any

from lightning_fabric import Fabric
from lightning_fabric.utilities.data import _update_dataloader
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler, Sampler, SequentialSampler

from model_training_framework.trainer.rng import derive_seed

KEPT = ("num_workers", "collate_fn", "pin_memory", "timeout", "multiprocessing_context", "prefetch_factor",
        "persistent_workers")  # fmt: skip


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


class Unpadded(Sampler[int]):  # type: ignore[misc]
    """A rank's samples without those that its sampler repeats at the end, so that each sample is on one rank once."""

    def __init__(self, sampler: Any, num_samples: int) -> None:
        """Take a Share or DistributedSampler, and how many of its samples are no repetitions."""
        self._sampler = sampler
        self._num_samples = num_samples

    @property
    def generator(self) -> Any:
        """Return what the sampler draws from."""
        return getattr(self._sampler, "generator", None)

    def set_epoch(self, epoch: int) -> None:
        """Tell the sampler which epoch it is, where it asks."""
        if hasattr(self._sampler, "set_epoch"):
            self._sampler.set_epoch(epoch)

    def __len__(self) -> int:
        """Return the number of samples of this rank."""
        return self._num_samples

    def __iter__(self) -> Iterator[int]:
        """Yield this rank's samples."""
        return islice(iter(self._sampler), self._num_samples)


def shared_out(loader: Any, fabric: Fabric, seed: int, is_exact: bool) -> Any:
    """Return a loader that gives each rank its share, in the order of the seed."""
    # ranks that all compute one model share nothing out
    shares = getattr(fabric.strategy, "distributed_sampler_kwargs", None) or {"num_replicas": 1}
    is_plain = type(loader) is DataLoader and (loader.batch_sampler is None) == (loader.batch_size is None)
    if shares["num_replicas"] > 1 and is_plain and type(loader.sampler) in (RandomSampler, SequentialSampler):
        share: Any = Share(loader.sampler, **shares)
        if is_exact:
            share = Unpadded(share, _count(len(loader.sampler), **shares))
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
    if not isinstance(sampler, DistributedSampler):  # of a loader that has a batch sampler of its own
        sampler = getattr(getattr(shared, "batch_sampler", None), "sampler", None)
    if is_exact and isinstance(sampler, DistributedSampler) and not sampler.drop_last:
        num_samples = _count(len(sampler.dataset), sampler.num_replicas, sampler.rank)
        shared = _update_dataloader(shared, Unpadded(sampler, num_samples))
    return shared


def _count(num_samples: int, num_replicas: int, rank: int) -> int:
    """Return how many samples a rank has that takes every so many-th, from its own number on."""
    return len(range(rank, num_samples, num_replicas))
