"""Rows as arrays: physics terms, features and hull coordinates, computed once per distinct shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fitting.tables import Row
from predictor.core.costs.features import hull_coordinates, physics_terms, shape_features

Vector = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Samples:
    """The rows of one regressor in one direction.

    Attributes:
        us: measured microseconds, (rows,).
        terms: physics terms, (rows, terms), the launch first.
        features: ``shape_features``, (rows, features).
        hull: hull coordinates, (rows, coordinates).
        work: FLOPs, or bytes of operators without any; orders rows by size.
        group: number of the distinct shape; all rows of a group are on the same side of a split.
        table: number of the row's column, see ``columns``.
        part: number of the row's operator in a pool, or of its topology, see ``parts``.
        most_launch_us: upper bound of the launch term.
        own_ranges: every part has its own range of sizes, as the topologies of a collective do.
        has_softmax: the rows are of fused attention, which draws less power than products alone.
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
    has_softmax: bool = False

    def take(self, chosen: NDArray[np.bool_]) -> Samples:
        """Return the chosen rows."""
        arrays: dict[str, Any] = {
            name: value[chosen] for name in self.__slots__ if isinstance(value := getattr(self, name), np.ndarray)
        }
        return replace(self, **arrays)

    @property
    def is_one_device(self) -> bool:
        """Return whether no shape repeats; where several devices measured the same shapes, their rows differ."""
        return len(np.unique(self.group)) == len(self)

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.us)


def columns(rows: Sequence[Row]) -> list[str]:
    """Return the names of the rows' columns, sorted; ``Samples.table`` is an index into them."""
    return sorted({row.column for row in rows})


def topologies(rows: Sequence[Row]) -> list[tuple[int, int]]:
    """Return the topologies of a collective's rows, sorted; none for an operator."""
    return sorted({(row.shape[1], row.shape[2]) for row in rows if row.is_collective})


def part_of(row: Row) -> str:
    """Return the key of a row's interval in a published model: its operator, or its topology."""
    return f"{row.shape[1]}x{row.shape[2]}" if row.is_collective else row.operator.name


def parts(rows: Sequence[Row]) -> list[str]:
    """Return the names of the rows' parts, sorted; ``Samples.part`` is an index into them."""
    return sorted({part_of(row) for row in rows})


def _numbers(keys: Sequence[Any]) -> NDArray[np.int64]:
    """Return the position of each key among the distinct keys, sorted."""
    position = {key: number for number, key in enumerate(sorted(set(keys)))}
    return np.array([position[key] for key in keys], dtype=np.int64)


def to_samples(
    rows: Sequence[Row], num_multiprocessors: int, members: Sequence[str], most_launch_us: float = np.inf
) -> Samples:
    """Compute the fit's inputs of every row; rows of one shape share them."""
    distinct = list({(row.operator.name, row.shape): row for row in rows}.values())
    numbers = {(row.operator.name, row.shape): number for number, row in enumerate(distinct)}
    index = np.array([numbers[row.operator.name, row.shape] for row in rows], dtype=np.int64)
    works = [row.operator.work(row.shape, row.direction, num_multiprocessors) for row in distinct]
    terms = [physics_terms(work) for work in works]
    features = [
        shape_features(r.operator, r.shape, t, members, num_multiprocessors)
        for r, t in zip(distinct, terms, strict=True)
    ]
    hull = [hull_coordinates(r.shape, work) for r, work in zip(distinct, works, strict=True)]
    return Samples(
        us=np.array([row.us for row in rows]),
        terms=np.array(terms, dtype=float)[index],
        features=np.array(features, dtype=float)[index],
        hull=np.array(hull, dtype=float)[index],
        work=np.array([work.flops or work.size_bytes for work in works])[index],
        group=_numbers([row.shape for row in rows]),
        table=_numbers([row.column for row in rows]),
        part=_numbers([part_of(row) for row in rows]),
        most_launch_us=most_launch_us,
        own_ranges=any(row.is_collective for row in rows),
        has_softmax=any(row.operator.fused_attention for row in rows),
    )
