"""Rows as arrays: physics terms, features and hull coordinates, computed once per distinct shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fitting.tables import Row
from predictor.costs.features import hull_coordinates, physics_terms, shape_features

Vector = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Samples:
    """The rows of one regressor in one direction.

    Attributes:
        us: measured microseconds, (rows,).
        terms: physics terms, (rows, terms), the launch first.
        features: ``shape_features``, (rows, features).
        hull: hull coordinates, (rows, coordinates).
        work: what orders rows by size: FLOPs, or bytes where there are none.
        group: number of the distinct shape; rows of one group never lie on both sides of a split.
        table: number of the column that a row comes from, see ``columns``.
        part: number of the operator in a pool, or of the collective's topology, see ``parts``.
        most_launch_us: the largest launch term that the fit may find.
        own_ranges: every part has its own range of sizes, as a collective's topologies have.
    """

    us: Vector
    terms: Vector
    features: Vector
    hull: Vector
    work: Vector
    group: NDArray[np.int64]
    table: NDArray[np.int64]
    part: NDArray[np.int64]
    most_launch_us: float = np.inf
    own_ranges: bool = False

    def take(self, chosen: NDArray[np.bool_]) -> Samples:
        """Return the chosen rows."""
        settings = {"most_launch_us": self.most_launch_us, "own_ranges": self.own_ranges}
        arrays = {name: getattr(self, name)[chosen] for name in self.__slots__ if name not in settings}
        return Samples(**arrays, most_launch_us=self.most_launch_us, own_ranges=self.own_ranges)

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.us)


def columns(rows: Sequence[Row]) -> list[str]:
    """Return the names of the columns that rows come from, sorted; ``Samples.table`` counts them."""
    return sorted({row.column for row in rows})


def topologies(rows: Sequence[Row]) -> list[tuple[int, int]]:
    """Return the topologies of a collective's rows, sorted; none for an operator."""
    return sorted({(row.shape[1], row.shape[2]) for row in rows if row.is_collective})


def part_of(row: Row) -> str:
    """Return what a row's interval goes by: its operator, or its topology as a published model spells it."""
    return f"{row.shape[1]}x{row.shape[2]}" if row.is_collective else row.operator.name


def parts(rows: Sequence[Row]) -> list[str]:
    """Return the names of the parts that rows belong to, sorted; ``Samples.part`` counts them."""
    return sorted({part_of(row) for row in rows})


def to_samples(
    rows: Sequence[Row], num_multiprocessors: int, members: Sequence[str], most_launch_us: float = np.inf
) -> Samples:
    """Compute the fit's inputs of every row; rows of one shape share them."""
    numbers: dict[tuple[str, tuple[int, ...]], int] = {}
    groups: dict[tuple[int, ...], int] = {}
    distinct: list[Row] = []
    index = np.empty(len(rows), dtype=np.int64)
    for i, row in enumerate(rows):
        key = (row.operator.name, row.shape)
        if key not in numbers:
            numbers[key] = len(distinct)
            distinct.append(row)
        index[i] = numbers[key]
    for shape in sorted({row.shape for row in rows}):
        groups[shape] = len(groups)
    works = [row.operator.work(row.shape, row.direction, num_multiprocessors) for row in distinct]
    terms = [physics_terms(work) for work in works]
    features = [shape_features(r.operator, r.shape, t, members) for r, t in zip(distinct, terms, strict=True)]
    hull = [hull_coordinates(r.shape, work) for r, work in zip(distinct, works, strict=True)]
    column_number = {name: i for i, name in enumerate(columns(rows))}
    part_number = {name: i for i, name in enumerate(parts(rows))}
    return Samples(
        us=np.array([row.us for row in rows]),
        terms=np.array(terms, dtype=float)[index],
        features=np.array(features, dtype=float)[index],
        hull=np.array(hull, dtype=float)[index],
        work=np.array([work.flops or work.size_bytes for work in works])[index],
        group=np.array([groups[row.shape] for row in rows], dtype=np.int64),
        table=np.array([column_number[row.column] for row in rows], dtype=np.int64),
        part=np.array([part_number[part_of(row)] for row in rows], dtype=np.int64),
        most_launch_us=most_launch_us,
        own_ranges=any(row.is_collective for row in rows),
    )
