"""The figures of the report, one function each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from microbench.attention import SETTING
from microbench.collectives.bandwidth import bus_bandwidth, total_bytes
from microbench.report.svg import Series, log_plot, style
from microbench.table import Measurement, Table
from predictor.core.base.errors import PublishedError
from predictor.core.costs.catalogue import catalogue
from predictor.core.costs.collectives import COLLECTIVES
from predictor.core.costs.operator import Direction, Operator, in_kernel
from predictor.core.costs.published import PublishedSystem
from predictor.core.hardware.hardware import System

SMALL, LARGE = (250, 250), (620, 400)


@dataclass(frozen=True, slots=True)
class Point:
    """One measured call."""

    operator: Operator
    precision: str
    row: Measurement


def points_of(tables: Sequence[Table]) -> list[Point]:
    """Return every call that was timed."""
    known = catalogue() | COLLECTIVES
    return [
        Point(
            in_kernel(known[table.provenance.identity.name], table.provenance.identity.settings.get(SETTING, "")),
            table.provenance.identity.precision,
            row,
        )
        for table in tables
        for row in table.rows
        if row.status.is_timed and table.provenance.identity.name in known
    ]


def predicted_us(point: Point, system: PublishedSystem) -> float | None:
    """Return the published system's prediction of a call; None where there is none."""
    try:
        return system.cost(point.operator, point.row.direction, point.row.shape).us
    except PublishedError:
        return None


def parity(name: str, points: Sequence[Point], system: PublishedSystem) -> str:
    """Plot predicted against measured times of an operator or a collective."""
    series = []
    ends: list[float] = []
    for index, direction in enumerate(Direction):
        times = [
            (median(point.row.best_samples_us), us)
            for point in points
            if point.row.direction is direction and (us := predicted_us(point, system)) is not None
        ]
        ends += [value for pair in times for value in pair]
        if times:
            series.append(Series(direction.value, times, "points", *style(index)))
    if ends:
        series.append(Series("equal", [(min(ends),) * 2, (max(ends),) * 2], "line", "#555555", dashed=True))
    return log_plot(name, ("measured, µs", "predicted, µs"), series, SMALL, equal=True)


def roofline(points: Sequence[Point], system: System) -> str:
    """Plot the rate of every call with FLOPs against its arithmetic intensity, below the device's peaks."""
    multiprocessors = int(system.gpu.num_multiprocessors.value)
    rates: dict[str, list[tuple[float, float]]] = {}
    for point in points:
        work = point.operator.work(point.row.shape, point.row.direction, multiprocessors)
        moved = work.size_bytes * point.operator.byte_scale(point.precision)
        if work.flops > 0.0 and moved > 0.0:
            us = median(point.row.best_samples_us)
            rates.setdefault(point.operator.regressor_name, []).append((work.flops / moved, work.flops / us / 1e3))
    series = [Series(name, pairs, "points", *style(index)) for index, (name, pairs) in enumerate(sorted(rates.items()))]
    intensities = [x for pairs in rates.values() for x, _ in pairs]
    measured = {point.precision for point in points} if intensities else set()
    for precision in sorted(measured & system.gpu.peak_tflop_per_s.keys()):
        peak = system.gpu.peak_tflop_per_s[precision].value * 1e3
        bandwidth = system.gpu.memory_bandwidth_gb_per_s.value
        ridge = peak / bandwidth
        low, high = min((*intensities, ridge)) / 2.0, max((*intensities, ridge)) * 2.0
        line = [(low, low * bandwidth), (ridge, peak), (high, peak)]
        series.append(Series(f"peak, {precision}", line, "line", "#000000"))
    return log_plot("Roofline", ("intensity, FLOP per byte", "rate, GFLOP/s"), series, LARGE)


def bus_bandwidths(name: str, points: Sequence[Point]) -> str:
    """Plot the bus bandwidth of a collective against its message size, a line per topology."""
    lines: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for point in points:
        size, nodes, per_node = point.row.shape
        total = total_bytes(name, size, nodes * per_node)
        speed = bus_bandwidth(name, total, point.row.median_us, nodes * per_node)
        lines.setdefault((nodes, per_node), []).append((float(size), speed))
    series = [
        Series(f"{nodes} × {per_node}", sorted(line), "both", *style(index))
        for index, ((nodes, per_node), line) in enumerate(sorted(lines.items()))
    ]
    return log_plot(name, ("message of one rank, bytes", "bus bandwidth, GB/s"), series, (330, 230))
