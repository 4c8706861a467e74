"""Drop rows that the hardware cannot have produced, and outliers; report which and why.

A row is dropped when it beats a peak of the GPU or of the links, when both directions repeat one number though their
work differs, when another kernel ran than for most of its operator's rows, when it holds one part of a call that was
launched in several, or when it disagrees with the rows around it. A column (a table in one direction, a collective over
one topology) is dropped whole when too much of it beats a peak, or when neighbouring message sizes scatter more than
any transfer does. Nothing is dropped for being hard to predict: the limits are the hardware's, and neighbours are
judged relative to their own scatter.

``residual_add`` has the same duration both ways in every row, and keeps it: the backward pass sums the gradients of
the two branches with the same kernel, so its work is equal and nothing forbids equal times.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from fitting.physics import fit_physics, terms_matrix
from fitting.tables import Row
from predictor.costs.hardware import Links, System
from predictor.costs.operator import BOTH

NOT_POSITIVE = "not a positive duration"
BEATS_FLOPS = "faster than the peak FLOP/s"
BEATS_MEMORY = "faster than the memory bandwidth"
BEATS_LINK = "faster than the links"
REPEATED = "forward and backward repeat one number"
OTHER_KERNEL = "another kernel than most rows of the operator: {kernel}"
PART = "one launch of a call that takes several"
OUTLIER = "disagrees with its neighbours"
NOT_A_MEASUREMENT = "in a column of which more than 25 % beats a peak: not a measurement"
NOISE = "in a column whose neighbouring sizes scatter by more than 10 %: noise, not a transfer"

IMPOSSIBLE = (NOT_POSITIVE, BEATS_FLOPS, BEATS_MEMORY, BEATS_LINK)
IMPOSSIBLE_SHARE = 0.25
NOISE_LOG_SCATTER = 0.10
NOISE_WINDOW = 15
# Below this many times the L2 cache a kernel may never touch device memory, so bandwidth says nothing about it.
CACHE_MULTIPLE = 2.0
REPEATED_TOLERANCE = 0.005
REPEATED_WORK_RATIO = 1.25
# Of streams of fewer kernels one way than the other: the second pass of a few is the first and a µs more.
REPEATED_STREAM_TOLERANCE = 0.02
# PyTorch launches an element-wise kernel again for every so many bytes of a tensor, whose offsets are 32-bit numbers.
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
    """How many rows of a column there were, how many are kept, and why the others are not."""

    rows: int = 0
    kept: int = 0
    dropped: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class Gated:
    """What the gate kept of one regressor's rows in one direction, with the count of every column."""

    kept: list[Row] = field(default_factory=list)
    columns: dict[str, ColumnCount] = field(default_factory=dict)


def link_floor_us(row: Row, links: Links, gpus_per_node: int) -> float:
    """Return the time below which no transfer over these links can be, in microseconds.

    Inside a node the links of one GPU are shared evenly among its peers; between nodes each GPU has one network
    interface.
    """
    pair_bytes, interface_bytes = row.operator.work(row.shape, row.direction, 1).extras[:2]
    pair_gb_per_s = links.intra_node_gb_per_s.value / max(gpus_per_node - 1, 1)
    return pair_bytes / (pair_gb_per_s * 1e3) + interface_bytes / (links.inter_node_gb_per_s.value * 1e3)


def _repeats(row: Row, other_us: float, num_multiprocessors: int) -> bool:
    """Return whether both directions have one time though they move other bytes, or stream in so many other kernels."""
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
    """Return why a row is dropped before it is compared with others."""
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
    """Return how fast each call of an operator can be: what the peaks allow, and no kernel is shorter than some."""
    if any(row.is_collective for row in rows):
        return np.zeros(len(rows))
    gpu = system.gpu
    flop_per_us = gpu.peak_tflop_per_s[precision].value * 1e6
    bytes_per_us = gpu.memory_bandwidth_gb_per_s.value * 1e3
    found = []
    for row in rows:
        work = row.operator.work(row.shape, row.direction, int(gpu.num_multiprocessors.value))
        size_bytes = work.size_bytes * row.operator.byte_scale(precision)
        found.append(max(work.flops / flop_per_us, size_bytes / bytes_per_us, SHORTEST_KERNEL_US))
    return np.array(found)


def outliers(rows: Sequence[Row], system: System, precision: str) -> NDArray[np.bool_]:
    """Return which rows lie far from the median of their nearest shapes, after physics has taken the trend away.

    Where FLOPs bound most rows, physics is short of the few that memory or a launch bounds. So what a row exceeds it by
    counts neither against that row nor against its neighbours if the row is nearly as fast as hardware can be.
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
    # One collective's topologies have one trend each; an operator's tables of different parts of one model share
    # theirs.
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
    """Return which streams are larger than one launch and far faster than physics makes of those that are not.

    A table made from a profile may hold the time of one launch, and a call of several then takes a half or a quarter of
    what its bytes take in smaller calls.
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
    """Return the median absolute deviation of log time per byte against its running median over message sizes."""
    ordered = sorted(rows, key=lambda row: row.shape)
    series = pd.Series(np.log([row.us / row.shape[0] for row in ordered]))
    running = series.rolling(NOISE_WINDOW, center=True, min_periods=NOISE_WINDOW // 3).median()
    return float((series - running).abs().median())


def _drop_columns(rows: Sequence[Row], bad: set[str], reason: str, columns: dict[str, ColumnCount]) -> list[Row]:
    for row in rows:
        if row.column in bad:
            columns[row.column].dropped[reason] += 1
    return [row for row in rows if row.column not in bad]


def _drop_flagged(
    rows: Sequence[Row], flags: NDArray[np.bool_], reason: str, columns: dict[str, ColumnCount]
) -> list[Row]:
    for row, flagged in zip(rows, flags, strict=True):
        if flagged:
            columns[row.column].dropped[reason] += 1
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
    possible = _drop_columns(possible, impossible, NOT_A_MEASUREMENT, result.columns)
    sms = int(system.gpu.num_multiprocessors.value)
    whole = _drop_flagged(possible, parts_of_calls(possible, sms), PART, result.columns)
    agreeing = _drop_flagged(whole, outliers(whole, system, precision), OUTLIER, result.columns)
    by_column: dict[str, list[Row]] = {}
    for row in agreeing:
        if row.is_collective:
            by_column.setdefault(row.column, []).append(row)
    noisy = {name for name, members in by_column.items() if scatter(members) > NOISE_LOG_SCATTER}
    result.kept = _drop_columns(agreeing, noisy, NOISE, result.columns)
    for row in result.kept:
        result.columns[row.column].kept += 1
    return result
