"""Faults to inject, drawn from a seed: what, how large, from which step, on which rank."""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

TRUTH = "truth.json"  # in a run's folder
STEPS = 120
EARLIEST, LATEST = 50, 70  # first step of a fault


class Kind(StrEnum):
    """What is done to a run."""

    NONE = "none"
    SLOW_RANK = "slow rank"
    LOADER = "slow data loader"
    DISK = "slow disk at checkpoints"
    CONTENTION = "CPU contention"
    CGROUP = "throttled cgroup"
    NETWORK = "slow collectives"
    BATCH = "changed batch"
    LEAK = "memory leak"
    RESTART = "restart"


# Sizes of each, and their unit.
SIZES: dict[Kind, tuple[float, ...]] = {
    Kind.NONE: (0.0,),
    Kind.SLOW_RANK: (0.4, 0.6, 0.8),  # share of the time for which one rank is stopped, in pulses of a step's length
    Kind.LOADER: (0.5, 1.0, 2.0),  # usual steps that the loader takes longer for a batch
    Kind.DISK: (2.0, 5.0, 10.0),  # usual steps that a checkpoint takes longer
    Kind.CONTENTION: (1.0, 2.0, 4.0),  # busy processes on each core of the run
    Kind.CGROUP: (0.75, 0.5, 0.35),  # of the CPU time that the ranks took before
    Kind.NETWORK: (0.5, 1.0, 2.0),  # usual steps that the gradients' reduction takes longer
    Kind.BATCH: (2.0, 4.0, 8.0),  # times the samples, or the sequence
    Kind.LEAK: (6.0, 12.0, 24.0),  # MB that a step keeps, and that all later ones read
    Kind.RESTART: (0.2, 1.0, 3.0),  # seconds from the kill to the start
}
# Causes of predictor/watch/causes.yaml that name the part.
CAUSES: dict[Kind, frozenset[str]] = {
    Kind.NONE: frozenset(),
    Kind.SLOW_RANK: frozenset({"slow_rank"}),
    Kind.LOADER: frozenset({"data_loading"}),
    Kind.DISK: frozenset({"checkpointing"}),
    Kind.CONTENTION: frozenset({"contention"}),
    Kind.CGROUP: frozenset({"cgroup_throttling"}),
    Kind.NETWORK: frozenset({"network"}),
    Kind.BATCH: frozenset({"workload_changed"}),
    Kind.LEAK: frozenset({"memory_full"}),
    Kind.RESTART: frozenset({"restart"}),
}


@dataclass(frozen=True, slots=True)
class Fault:
    """A run and what is done to it.

    Attributes:
        number: of the run.
        ranks: of the run.
        size: in the unit of ``SIZES``.
        start: first affected step; injection outside of the ranks may begin a step later.
        rank: of a slow rank, a slow loader or a leak.
        variant: 0 or 1: loader of one rank or of all; batch or sequence; restart on the same host or another.
        seed: of the model and the data.
    """

    number: int
    kind: Kind
    ranks: int
    size: float
    start: int
    rank: int
    variant: int
    seed: int

    def as_dict(self) -> dict[str, Any]:
        """Return it for a JSON file."""
        return asdict(self)

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> Fault:
        """Return what ``as_dict`` gave."""
        return cls(**{**plain, "kind": Kind(plain["kind"])})


def faults(runs: int, ranks: tuple[int, ...], seed: int, kinds: tuple[Kind, ...] = tuple(Kind)) -> list[Fault]:
    """Draw runs that go through all kinds, sizes and numbers of ranks in turn."""
    draw = random.Random(seed)
    drawn = []
    for number in range(runs):
        kind, turn = kinds[number % len(kinds)], number // len(kinds)
        world = ranks[turn % len(ranks)]
        size = SIZES[kind][turn // len(ranks) % len(SIZES[kind])]
        start, rank, variant = draw.randint(EARLIEST, LATEST), draw.randrange(world), draw.randrange(2)
        drawn.append(Fault(number, kind, world, size, start, rank, variant, draw.getrandbits(31)))
    return drawn
