"""A space as cells, one for each way to multiply to the GPUs, of lines, whose candidates differ in the micro-batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from predictor.core.workload.parallelism_keys import ZeroStage
from predictor.layout_search.candidate import Degrees, Plan, Retention
from predictor.layout_search.space import Space

Batches = tuple[tuple[int, int], ...]
"""Micro-batch sizes with their numbers of micro-batches, the smallest first."""
Orders = list[tuple[tuple[str, int], Batches]]
"""Schedules with their chunks, and the micro-batches that each allows."""


AS_FEW_AS_FIT = 0
"""Recomputed layers of a candidate for which memory decides, until they are known."""


class Line(NamedTuple):
    """Candidates that differ in their micro-batch alone, the smallest first.

    Attributes:
        first: the candidate with the smallest micro-batch.
        batches: of all candidates.
        place: of the line in its space: cell, sequence parallelism, recomputation, schedule, sharing of states.
    """

    first: Plan
    batches: Batches
    place: tuple[int, ...]

    def plan(self, number: int) -> Plan:
        """Return a candidate."""
        size, count = self.batches[number]
        return self.first._replace(micro_batch_size=size, num_micro_batches=count)

    @property
    def partly_recomputed(self) -> Line:
        """Return the same candidates recomputing as few layers as fit."""
        return Line(self.first._replace(recompute_layers=AS_FEW_AS_FIT), self.batches, (*self.place, 1))

    def settled(self, plan: Plan, number: int) -> Line:
        """Return a line of a single one of its candidates."""
        return Line(plan, (self.batches[number],), self.place)

    def order(self, number: int) -> tuple[int, ...]:
        """Return the place of a candidate among all of its space: smaller micro-batches of a cell come first."""
        return self.place[0], self.batches[number][0], *self.place[1:]


class Cell(NamedTuple):
    """Candidates with the same parallel sizes.

    Attributes:
        place: in its space.
        orders: schedules and chunks, with the micro-batches that each allows.
    """

    place: int
    degrees: Degrees
    sharings: list[tuple[ZeroStage, int | None]]
    sequence_parallels: list[bool]
    recomputes: list[Retention]
    orders: Orders

    @property
    def size(self) -> int:
        """Return how many candidates there are."""
        switches = len(self.sharings) * len(self.sequence_parallels) * len(self.recomputes)
        return switches * sum([len(batches) for _, batches in self.orders])

    def lines(self, may_fit: Callable[[Plan], bool] = lambda _: True) -> Iterator[Line]:
        """Return the lines of candidates.

        Args:
            may_fit: is asked once for each sharing of states and schedule; lines for which it says no are left out.
        """
        if not (self.sequence_parallels and self.recomputes):
            return
        for z, (zero, group) in enumerate(self.sharings):
            for o, ((schedule, chunks), batches) in enumerate(self.orders):
                choices = self.sequence_parallels[0], *batches[0], self.recomputes[0][0], schedule, chunks
                if not may_fit(Plan(self.degrees, zero, *choices, zero_group=group)):
                    continue
                for p, parallel in enumerate(self.sequence_parallels):
                    for r, (recompute, modules, offloaded) in enumerate(self.recomputes):
                        choices = parallel, *batches[0], recompute, schedule, chunks
                        first = Plan(self.degrees, zero, *choices, modules, group, offload_modules=offloaded)
                        yield Line(first, batches, (self.place, p, r, o, z))


def _orders(space: Space, degrees: Degrees, batches: Batches) -> Orders:
    """Return every schedule with its chunks, and the micro-batches that it allows."""
    allowed: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for size, count in batches:
        for order in space.orders(degrees, count):
            allowed.setdefault(order, []).append((size, count))
    names = [*space.schedules, *(name for name, _ in allowed)]  # a single stage has a schedule that no one named
    in_order = sorted(allowed, key=lambda order: (names.index(order[0]), order[1]))
    return [(order, tuple(allowed[order])) for order in in_order]


def cells(space: Space) -> Iterator[Cell]:
    """Return the cells of a space, in order."""
    recomputes = space.recomputes()
    known: dict[tuple[int, Batches], Orders] = {}
    for place, degrees in enumerate(space.degrees()):
        batches = tuple(space.batches(degrees))
        key = degrees.pipeline, batches
        if key not in known:
            known[key] = _orders(space, degrees, batches)
        yield Cell(place, degrees, space.sharings(degrees), space.sequence_parallels(degrees), recomputes, known[key])


def plans(space: Space) -> Iterator[Plan]:
    """Return every candidate of a space, in order."""
    for cell in cells(space):
        numbered = [(line.order(i), line.plan(i)) for line in cell.lines() for i in range(len(line.batches))]
        yield from (plan for _, plan in sorted(numbered))
