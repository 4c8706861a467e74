"""Drop rows that the hardware cannot have produced, and outliers; report which and why.

A row is dropped if it beats a peak of the GPU or of the links, if both directions have the same time though their
work differs, if its kernel is not that of most rows of its operator, if it holds a single launch of a call that takes
several, or if it disagrees with its neighbours. A whole column (a table in one direction, a collective over one
topology) is dropped if more than a quarter of it beats a peak, or if neighbouring message sizes scatter by more than
10 %, 30 % where the processor itself moves the bytes. Nothing is dropped for being hard to predict: the limits are
the hardware's, and neighbours are compared with their own scatter.

``residual_add`` has the same duration in both directions of every row, and is kept: the backward pass sums the
gradients of both branches with the same kernel, so the work is equal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from fitting.physics import fit_physics, terms_matrix
from fitting.tables import Row
from predictor.core.costs.collectives import SHARDED
from predictor.core.costs.dropped import NOISE, OUTLIER
from predictor.core.costs.operator import BOTH
from predictor.core.hardware.hardware import Links, System

NOT_POSITIVE = "not a positive duration"
BEATS_FLOPS = "faster than the peak FLOP/s"
BEATS_MEMORY = "faster than the memory bandwidth"
BEATS_LINK = "faster than the links"
REPEATED = "same time forward and backward, with different work"
OTHER_KERNEL = "another kernel than most rows of the operator: {kernel}"
PART = "a single launch of a call of several"
NOT_A_MEASUREMENT = "in a column of which more than 25 % beats a peak"

IMPOSSIBLE = (NOT_POSITIVE, BEATS_FLOPS, BEATS_MEMORY, BEATS_LINK)
IMPOSSIBLE_SHARE = 0.25
# Largest scatter by what moves the bytes. A processor's cores also run the ranks, so its scheduler decides when a
# message is taken up; the fitted interval is as wide as the scatter.
NOISE_LOG_SCATTER = {"dedicated": 0.10, "processor": 0.30}
FEWEST_SIZES = 3
# Below this multiple of the L2 cache a kernel may run without device memory, so its bandwidth is no bound.
CACHE_MULTIPLE = 2.0
REPEATED_TOLERANCE = 0.005
REPEATED_WORK_RATIO = 1.25
# For streams with fewer kernels in one direction: tables hold the time of that direction plus a µs for the other.
REPEATED_STREAM_TOLERANCE = 0.02
# PyTorch launches an element-wise kernel once per this many bytes of a tensor, as offsets are 32-bit numbers.
# Source: aten/src/ATen/native/cuda/CUDALoops.cuh, gpu_kernel: can_use_32bit_indexing, with_32bit_indexing.
LAUNCHED_AT_ONCE_BYTES = 2.0**31
PART_LOG_RATIO = float(np.log(1.5))  # two launches each take half
SHORTEST_KERNEL_US = 2.0  # duration of an empty kernel on a GPU
NEIGHBOURS = 9
OUTLIER_SIGMAS = 8.0
OUTLIER_LOG_RATIO = float(np.log(1.25))
MAD_TO_SIGMA = 1.4826
FAR_LOG_RATIO = float(np.log(10.0))


@dataclass(slots=True)
class ColumnCount:
    """Numbers of measured and kept rows of a column, and of dropped rows by reason."""

    rows: int = 0
    kept: int = 0
    dropped: Counter[str] = field(default_factory=Counter)

    def to_dict(self) -> dict[str, Any]:
        """Return the counts as a document has them, with the reasons sorted."""
        return {"rows": self.rows, "kept": self.kept, "dropped": dict(sorted(self.dropped.items()))}


@dataclass(slots=True)
class Gated:
    """Kept rows of a regressor in one direction, and the counts of every column."""

    kept: list[Row] = field(default_factory=list)
    columns: dict[str, ColumnCount] = field(default_factory=dict)


def link_floor_us(row: Row, links: Links, gpus_per_node: int) -> float:
    """Return the least time of a transfer over these links, in microseconds.

    Inside a pairwise wired node the links of one GPU are shared evenly among its peers. Behind a switch a GPU drives
    all of them whatever the group, and where the switch adds up (NVLink SHARP) an all-reduce is its buffer each way.
    Between nodes each GPU has one network interface.
    """
    work = row.operator.work(row.shape, row.direction, 1)
    pair_bytes, interface_bytes = work.extras[:2]
    crossing_us = interface_bytes / (links.inter_node_gb_per_s.value * 1e3)
    if links.wiring == "switch":
        inside = 0.0 if row.shape[1] > 1 else min(work.size_bytes, float(row.shape[0] * _copies(row)))
        return inside / (links.intra_node_gb_per_s.value * 1e3) + crossing_us
    pair_gb_per_s = links.intra_node_gb_per_s.value / max(gpus_per_node - 1, 1)
    return pair_bytes / (pair_gb_per_s * 1e3) + crossing_us


def _copies(row: Row) -> int:
    """Return how often a GPU must take in or send out the size of a collective, whoever adds up."""
    return row.shape[1] * row.shape[2] - 1 if row.operator.name in SHARDED else 1


def _repeats(row: Row, other_us: float, num_multiprocessors: int) -> bool:
    """Return whether both directions have the same time though their bytes, or a stream's kernels, differ."""
    apart = abs(row.us / other_us - 1.0)
    forward, backward = (row.operator.work(row.shape, direction, num_multiprocessors) for direction in BOTH)
    few, many = sorted((forward.size_bytes, backward.size_bytes))
    if many > REPEATED_WORK_RATIO * few and apart < REPEATED_TOLERANCE:
        return True
    streams = not forward.flops and row.operator.launches[0] != row.operator.launches[1]
    return streams and apart < REPEATED_STREAM_TOLERANCE


def _physical_reason(row: Row, system: System, precision: str) -> str | None:
    if not row.us > 0.0 or not np.isfinite(row.us):
        return NOT_POSITIVE
    if row.is_collective:
        return BEATS_LINK if row.us < link_floor_us(row, system.links, system.gpus_per_node) else None
    gpu = system.gpu
    sms = int(gpu.num_multiprocessors.value)
    work = row.operator.work(row.shape, row.direction, sms)
    if work.flops / row.us > gpu.peak_tflop_per_s[precision].value * 1e6:
        return BEATS_FLOPS
    cache_bytes = gpu.l2_cache_mb.value * 1e6
    size_bytes = work.size_bytes * row.operator.byte_scale(precision)
    if size_bytes > CACHE_MULTIPLE * cache_bytes:
        uncached = size_bytes - cache_bytes
        if uncached / row.us > gpu.memory_bandwidth_gb_per_s.value * 1e3:
            return BEATS_MEMORY
    if row.other_us and _repeats(row, row.other_us, sms):
        return REPEATED
    return None


def usual_kernels(rows: Sequence[Row]) -> dict[str, str]:
    """Return the kernel that ran for most rows of each operator."""
    kernels: dict[str, Counter[str]] = {}
    for row in rows:
        if row.unusable is None:
            kernels.setdefault(row.operator.name, Counter())[row.kernel] += 1
    return {name: counted.most_common(1)[0][0] for name, counted in kernels.items()}


def _reason(row: Row, system: System, precision: str, usual: dict[str, str]) -> str | None:
    """Return why a row is dropped without a comparison with others; None if it is not."""
    if row.unusable is not None:
        return row.unusable
    if not row.is_collective and row.kernel != usual[row.operator.name]:
        return OTHER_KERNEL.format(kernel=row.kernel)
    return _physical_reason(row, system, precision)


def _deviations(rows: Sequence[Row], residual: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the distance of each row's log residual from the median of its nearest shapes."""
    points = np.log([[size + 1.0 for size in row.shape] for row in rows])
    _, nearest = cKDTree(points).query(points, k=NEIGHBOURS + 1)
    others = residual[nearest]
    others[nearest == np.arange(len(rows))[:, None]] = np.nan
    deviation: NDArray[np.float64] = residual - np.nanmedian(others, axis=1)
    return deviation


def fastest_us(rows: Sequence[Row], system: System, precision: str) -> NDArray[np.float64]:
    """Return the least time of each call of an operator: by the peaks, and that of an empty kernel."""
    if any(row.is_collective for row in rows):
        return np.zeros(len(rows))
    gpu = system.gpu
    flop_per_us = gpu.peak_tflop_per_s[precision].value * 1e6
    bytes_per_us = gpu.memory_bandwidth_gb_per_s.value * 1e3
    least = []
    for row in rows:
        work = row.operator.work(row.shape, row.direction, int(gpu.num_multiprocessors.value))
        size_bytes = work.size_bytes * row.operator.byte_scale(precision)
        least.append(max(work.flops / flop_per_us, size_bytes / bytes_per_us, SHORTEST_KERNEL_US))
    return np.array(least)


def outliers(rows: Sequence[Row], system: System, precision: str) -> NDArray[np.bool_]:
    """Return which rows lie far from the median of their nearest shapes, after division by physics.

    Where FLOPs bound most rows, physics is too short for the few that memory or a launch bounds. So a row close to its
    least time may exceed physics: the excess counts neither against the row nor against its neighbours.
    """
    if len(rows) <= 2 * NEIGHBOURS:
        return np.zeros(len(rows), dtype=bool)
    matrix = terms_matrix(rows, int(system.gpu.num_multiprocessors.value))
    us = np.array([row.us for row in rows])
    residual = np.log(us / fit_physics(matrix, us).predict(matrix))
    nearly_fastest = us < np.exp(OUTLIER_LOG_RATIO) * fastest_us(rows, system, precision)
    excused = np.where(nearly_fastest, np.minimum(residual, 0.0), residual)
    return _far(rows, residual) & _far(rows, excused)


def _far(rows: Sequence[Row], residual: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return the rows whose log residual is far from those of their nearest shapes, or from all."""
    flags: NDArray[np.bool_] = np.abs(residual - np.median(residual)) > FAR_LOG_RATIO
    # Each topology of a collective has its own trend; all tables of an operator share a trend.
    names = np.array([row.column if row.is_collective else row.operator.name for row in rows])
    for name in sorted(set(names)):
        index = np.flatnonzero(names == name).tolist()
        if len(index) <= NEIGHBOURS:
            continue
        deviation = _deviations([rows[i] for i in index], residual[index])
        sigma = MAD_TO_SIGMA * np.median(np.abs(deviation - np.median(deviation)))
        flags[index] |= np.abs(deviation) > max(OUTLIER_SIGMAS * sigma, OUTLIER_LOG_RATIO)
    return flags


def parts_of_calls(rows: Sequence[Row], num_multiprocessors: int) -> NDArray[np.bool_]:
    """Return which streams exceed the bytes of a launch and are far faster than physics fitted to smaller streams.

    A table made from a profile may hold the time of a single launch; a call of several launches then seems to take a
    half or a quarter of the time of its bytes.
    """
    flags = np.zeros(len(rows), dtype=bool)
    works = [row.operator.work(row.shape, row.direction, num_multiprocessors) for row in rows]
    large = np.array([work.size_bytes > LAUNCHED_AT_ONCE_BYTES for work in works], dtype=bool)
    streams = not any(work.flops for work in works) and not any(row.is_collective for row in rows)
    if not streams or not large.any() or (~large).sum() <= 2 * NEIGHBOURS:
        return flags
    matrix = terms_matrix(rows, num_multiprocessors)
    us = np.array([row.us for row in rows])
    expected = fit_physics(matrix[~large], us[~large]).predict(matrix)
    flags[large] = np.log(expected[large] / us[large]) > PART_LOG_RATIO
    return flags


def scatter(rows: Sequence[Row]) -> float:
    """Return the median deviation of log time from the line between the neighbouring message sizes.

    Divided by the deviation that independent errors of the three give, so it is the scatter of a single size, however
    many sizes a table has per octave.
    """
    by_size: dict[int, list[float]] = {}
    for row in sorted(rows, key=lambda row: row.shape):
        by_size.setdefault(row.shape[0], []).append(row.us)
    if len(by_size) < FEWEST_SIZES:
        return 0.0
    size = np.log(np.array(list(by_size)))
    time = np.log([np.median(us) for us in by_size.values()])
    place = (size[1:-1] - size[:-2]) / (size[2:] - size[:-2])
    deviation = time[1:-1] - (1.0 - place) * time[:-2] - place * time[2:]
    return float(np.median(np.abs(deviation) / np.sqrt(1.0 + place**2 + (1.0 - place) ** 2)))


def _drop(rows: Sequence[Row], flags: Sequence[bool] | NDArray[np.bool_], reason: str, gated: Gated) -> list[Row]:
    """Return the rows without a flag, and count the others."""
    for row, flagged in zip(rows, flags, strict=True):
        if flagged:
            gated.columns[row.column].dropped[reason] += 1
    return [row for row, flagged in zip(rows, flags, strict=True) if not flagged]


def gate(rows: Sequence[Row], system: System, precision: str) -> Gated:
    """Gate the rows of one regressor and direction."""
    result = Gated()
    possible = []
    usual = usual_kernels(rows)
    for row in rows:
        column = result.columns.setdefault(row.column, ColumnCount())
        column.rows += 1
        reason = _reason(row, system, precision, usual)
        if reason is None:
            possible.append(row)
        else:
            column.dropped[reason] += 1
    impossible = {
        name
        for name, column in result.columns.items()
        if sum(column.dropped[reason] for reason in IMPOSSIBLE) > IMPOSSIBLE_SHARE * column.rows
    }
    kept = _drop(possible, [row.column in impossible for row in possible], NOT_A_MEASUREMENT, result)
    kept = _drop(kept, parts_of_calls(kept, int(system.gpu.num_multiprocessors.value)), PART, result)
    kept = _drop(kept, outliers(kept, system, precision), OUTLIER, result)
    by_column: dict[str, list[Row]] = {}
    for row in kept:
        by_column.setdefault(row.column, []).append(row)
    limit = NOISE_LOG_SCATTER[system.links.engine]
    noisy = {name for name, members in by_column.items() if members[0].is_collective and scatter(members) > limit}
    result.kept = _drop(kept, [row.column in noisy for row in kept], NOISE.format(limit=f"{100 * limit:.0f} %"), result)
    for row in result.kept:
        result.columns[row.column].kept += 1
    return result
