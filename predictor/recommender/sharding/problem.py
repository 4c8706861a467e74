"""Sharding as a makespan problem: load of every option on its ranks, and the step that follows.

A step waits for its slowest rank. A part of a table adds time, exchanged bytes and memory to the rank that holds it;
a copy on every rank adds bytes to the reduction of gradients instead of exchanging vectors. The step's time may be any
function that grows with the busiest rank's time, the most bytes that a rank exchanges, and the reduced bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from predictor.recommender.workload.embedding import Table
from predictor.recommender.workload.plan import ShardedTable, Sharding, ShardingPlan


class Load(NamedTuple):
    """What one part of a table adds to its rank.

    Attributes:
        busy_us: lookups, and the update of their rows; µs.
        exchanged_bytes: of pooled vectors in one direction; their gradients are as many.
        memory_bytes: rows and their optimizer states.
    """

    busy_us: float
    exchanged_bytes: float
    memory_bytes: float


class Way(NamedTuple):
    """One way to shard one table.

    Attributes:
        parts: ranks that hold a part, each with the same load.
        reduced_bytes: gradients that all ranks sum; 0 unless every rank holds a copy.
        choices: sets of ranks that it may lie on, such as nodes; empty: any.
    """

    sharding: Sharding
    parts: int
    load: Load
    reduced_bytes: float = 0.0
    choices: tuple[tuple[int, ...], ...] = ()


class Place(NamedTuple):
    """A table's way, and the ranks of its parts in ascending order."""

    way: Way
    ranks: tuple[int, ...]


class Floor(NamedTuple):
    """A linear function that a step's time never falls below.

    It joins what a bound on every argument by itself would tear apart: a table either exchanges vectors or reduces
    gradients, and pays for one of them.

    Attributes:
        base_us: may be negative, where traffic hides behind other work.
    """

    base_us: float
    per_busy_us: float
    us_per_exchanged_byte: float
    us_per_reduced_byte: float

    def share_us(self, way: Way, num_ranks: int) -> float:
        """Return what one table adds at least, its parts spread evenly over all ranks."""
        spread = way.parts / num_ranks
        return (
            spread * (self.per_busy_us * way.load.busy_us + self.us_per_exchanged_byte * way.load.exchanged_bytes)
            + self.us_per_reduced_byte * way.reduced_bytes
        )


# Arguments: the busiest rank's µs, the most bytes that a rank exchanges, the reduced bytes.
StepTime = Callable[[float, float, float], float]


@dataclass(frozen=True, slots=True)
class ShardingProblem:
    """Tables, the ways of each, and what a step takes.

    Attributes:
        ways: of each table, in the tables' order; at least one each.
        room_bytes: memory of one rank for tables.
        step_us: falls with none of its arguments.
        floors: linear functions below ``step_us``; they sharpen bounds and give starts.
    """

    num_ranks: int
    tables: tuple[Table, ...]
    ways: tuple[tuple[Way, ...], ...]
    room_bytes: float
    step_us: StepTime
    floors: tuple[Floor, ...] = ()

    def time_us(self, places: tuple[Place, ...]) -> float:
        """Return the time of a step with every table in its place."""
        busy, exchanged = [0.0] * self.num_ranks, [0.0] * self.num_ranks
        for place in places:
            for rank in place.ranks:
                busy[rank] += place.way.load.busy_us
                exchanged[rank] += place.way.load.exchanged_bytes
        return self.step_us(max(busy), max(exchanged), sum(place.way.reduced_bytes for place in places))

    def memory_bytes(self, places: tuple[Place, ...]) -> list[float]:
        """Return what the tables take on each rank."""
        memory = [0.0] * self.num_ranks
        for place in places:
            for rank in place.ranks:
                memory[rank] += place.way.load.memory_bytes
        return memory

    def fits(self, places: tuple[Place, ...]) -> bool:
        """Return whether no rank holds more than it has room for."""
        return max(self.memory_bytes(places)) <= self.room_bytes

    def plan(self, places: tuple[Place, ...]) -> ShardingPlan:
        """Return the plan of these places."""
        return ShardingPlan(
            self.num_ranks,
            tuple(
                ShardedTable(table, place.way.sharding, place.ranks)
                for table, place in zip(self.tables, places, strict=True)
            ),
        )


class Solution(NamedTuple):
    """The best places that a search knows.

    Attributes:
        bound_us: no places make a faster step; equal to ``time_us`` where the places are proven best.
    """

    places: tuple[Place, ...]
    time_us: float
    bound_us: float
