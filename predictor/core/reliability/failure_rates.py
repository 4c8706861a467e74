"""Rates of failures, stops and planned stops from what clusters counted, with the spread between clusters."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from math import inf
from pathlib import Path
from statistics import fmean
from typing import Literal

from pydantic import Field, model_validator

from predictor.core.base.quantities import HOURS_PER_DAY, HOURS_PER_MONTH
from predictor.core.base.read_yaml import read_mapping
from predictor.core.hardware.hardware import Gpu, HardwareModel
from predictor.core.reliability.new_cluster import NewCluster, Spread, of_new_cluster

DATA = Path(__file__).with_name("clusters.yaml")
Generation = Literal["volta", "ampere", "hopper", "blackwell"]
Recovery = Literal["automatic", "manual"]
GENERATIONS: dict[str | None, Generation] = {"mma": "ampere", "wgmma": "hopper", "tcgen05": "blackwell"}


class Kind(StrEnum):
    """Cause of an interruption."""

    GPU = "gpu"
    NODE = "node"
    NETWORK = "network"
    SOFTWARE = "software"
    UNKNOWN = "unknown"


class Cluster(HardwareModel):
    """What one cluster or training counted; a part that it did not publish is None."""

    name: str
    generation: Generation | None = None
    gpu_hours: float | None = Field(default=None, gt=0)
    interruptions: int | None = Field(default=None, gt=0)
    kinds: dict[Kind, int] = Field(default_factory=dict)
    planned_stops: int | None = Field(default=None, gt=0)
    days: float | None = Field(default=None, gt=0)
    recovery: Recovery | None = None
    stop_minutes: float | None = Field(default=None, gt=0)
    source: str = Field(min_length=1)

    @model_validator(mode="after")
    def _pairs(self) -> Cluster:
        """Refuse a count without what it is counted over."""
        pairs = {
            "interruptions": self.gpu_hours,
            "planned_stops": self.days,
            "stop_minutes": self.recovery,
        }
        for key, over in pairs.items():
            if (getattr(self, key) is None) != (over is None):
                raise ValueError(f"{self.name}: {key} is counted over gpu_hours, days or by recovery; give both")
        return self

    @property
    def per_gpu_hour(self) -> float:
        """Return the interruptions in a GPU-hour; not a number where they were not counted."""
        return (self.interruptions or 0) / (self.gpu_hours or inf)


@dataclass(frozen=True, slots=True)
class FailureRates:
    """Interruptions of a job that any failure stops.

    Attributes:
        per_gpu_hour: median over clusters.
        spread: from one cluster to another; ``KNOWN`` of a rate that is given.
        shares: of the kinds; they sum to 1.
        source: clusters, or the configuration.
    """

    per_gpu_hour: float
    spread: Spread
    shares: dict[Kind, float]
    source: str


@lru_cache(maxsize=1)
def clusters() -> tuple[Cluster, ...]:
    """Return the clusters and trainings whose counts were published."""
    return tuple(Cluster.model_validate({"name": name, **facts}) for name, facts in read_mapping(DATA).items())


def generation_of(gpu: Gpu) -> Generation | None:
    """Return the generation of a GPU; None where no counts could be of it."""
    return GENERATIONS.get(gpu.matrix_instruction)


def _known(without: Collection[str]) -> list[Cluster]:
    return [cluster for cluster in clusters() if cluster.name not in without]


@lru_cache(maxsize=64)
def failure_rates(generation: Generation | None, without: frozenset[str] = frozenset()) -> FailureRates:
    """Return the rates of a cluster of a generation.

    Args:
        generation: of its GPUs; None: of unknown ones.
        without: clusters that take no part, by name.
    """
    counted = [cluster for cluster in _known(without) if cluster.interruptions is not None]
    by_generation: dict[str, list[float]] = {}
    for cluster in counted:
        by_generation.setdefault(cluster.generation or "", []).append(cluster.per_gpu_hour)
    # The variance of the log of a Poisson count is about one over the count.
    rate = of_new_cluster(by_generation, generation or "", [1.0 / (cluster.interruptions or 1) for cluster in counted])
    # Each cluster counts once, however long it counted: a new cluster is one more draw of the same kind.
    by_kind = [cluster for cluster in counted if cluster.kinds]
    shares = {
        kind: fmean(cluster.kinds.get(kind, 0) / sum(cluster.kinds.values()) for cluster in by_kind) for kind in Kind
    }
    return FailureRates(rate.median, rate.spread, shares, ", ".join(cluster.name for cluster in counted))


@lru_cache(maxsize=64)
def stop_minutes(recovery: Recovery, without: frozenset[str] = frozenset()) -> NewCluster:
    """Return the mean time from a failure to the first new step of one more team that recovers in a way."""
    by_recovery: dict[str, list[float]] = {}
    for cluster in _known(without):
        if cluster.stop_minutes is not None:
            by_recovery.setdefault(cluster.recovery or "", []).append(cluster.stop_minutes)
    return of_new_cluster(by_recovery, recovery)


@lru_cache(maxsize=64)
def planned_per_month(without: frozenset[str] = frozenset()) -> NewCluster:
    """Return the planned stops of one more training in a month."""
    counted = [cluster for cluster in _known(without) if cluster.planned_stops is not None]
    months = [
        (cluster.planned_stops or 0, (cluster.days or inf) * HOURS_PER_DAY / HOURS_PER_MONTH) for cluster in counted
    ]
    return of_new_cluster({"": [stops / each for stops, each in months]}, "", [1.0 / stops for stops, _ in months])
