"""Failure rates from counted interruptions of clusters, with the spread between clusters."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from math import exp, inf, log, sqrt
from pathlib import Path
from statistics import fmean
from typing import Literal

from pydantic import Field

from predictor.core.base.read_yaml import read_mapping
from predictor.core.hardware.hardware import Gpu, HardwareModel

DATA = Path(__file__).with_name("clusters.yaml")
Generation = Literal["volta", "ampere", "hopper", "blackwell"]
GENERATIONS: dict[str | None, Generation] = {"mma": "ampere", "wgmma": "hopper", "tcgen05": "blackwell"}
# Clusters of one generation that tell its rate by themselves; with fewer, those of all generations do.
ENOUGH = 3


class Kind(StrEnum):
    """Cause of an interruption."""

    GPU = "gpu"
    NODE = "node"
    NETWORK = "network"
    SOFTWARE = "software"
    UNKNOWN = "unknown"


class Cluster(HardwareModel):
    """Interruptions that one cluster counted."""

    name: str
    generation: Generation
    gpus: int = Field(gt=0)
    gpu_hours: float = Field(gt=0)
    interruptions: int = Field(gt=0)
    kinds: dict[Kind, int] = Field(default_factory=dict)
    source: str = Field(min_length=1)

    @property
    def per_gpu_hour(self) -> float:
        """Return the interruptions in a GPU-hour."""
        return self.interruptions / self.gpu_hours


@dataclass(frozen=True, slots=True)
class FailureRates:
    """Interruptions of a job that any failure stops.

    Attributes:
        per_gpu_hour: median over clusters.
        spread: standard deviation of its log from one cluster to another; 0 of a rate that is known.
        shares: of the kinds; they sum to 1.
        source: clusters, or the configuration.
    """

    per_gpu_hour: float
    spread: float
    shares: dict[Kind, float]
    source: str


@lru_cache(maxsize=1)
def clusters() -> tuple[Cluster, ...]:
    """Return the clusters whose interruptions were published."""
    return tuple(Cluster.model_validate({"name": name, **facts}) for name, facts in read_mapping(DATA).items())


def generation_of(gpu: Gpu) -> Generation | None:
    """Return the generation of a GPU; None where no counts could be of it."""
    return GENERATIONS.get(gpu.matrix_instruction)


def _spread(known: Sequence[Cluster]) -> float:
    """Return the standard deviation of a new cluster's log rate: between clusters, and of their mean."""
    logs = [log(cluster.per_gpu_hour) for cluster in known]
    if len(logs) < 2:
        return inf
    mean = fmean(logs)
    counted = fmean(1.0 / cluster.interruptions for cluster in known)  # variance of a log of a Poisson count
    between = max(sum((each - mean) ** 2 for each in logs) / (len(logs) - 1) - counted, 0.0)
    return sqrt(between * (1.0 + 1.0 / len(logs)))


def failure_rates(generation: Generation | None, without: Collection[str] = ()) -> FailureRates:
    """Return the rates of a cluster of a generation.

    Args:
        generation: of its GPUs; None: all generations.
        without: clusters that take no part, by name.
    """
    every = [cluster for cluster in clusters() if cluster.name not in without]
    alike = [cluster for cluster in every if cluster.generation == generation]
    known = alike if len(alike) >= ENOUGH else every
    counted = [cluster for cluster in every if cluster.kinds]
    # Each cluster counts once, however long it counted: another cluster is one more draw of the same kind.
    shares = {
        kind: fmean(cluster.kinds.get(kind, 0) / sum(cluster.kinds.values()) for cluster in counted) for kind in Kind
    }
    median = exp(fmean(log(cluster.per_gpu_hour) for cluster in known))
    return FailureRates(median, _spread(known), shares, ", ".join(cluster.name for cluster in known))
