"""Text report of a study: a table per stage, and the missing measurements. Reads files only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import TypeVar

from microbench.errors import MeasureError
from microbench.rows import Status
from microbench.study.record import (
    Attention,
    GradientProducts,
    Launches,
    Overlap,
    Pass,
    StageRecord,
    Step,
    Sustained,
    read_record,
)
from microbench.study.record import Measured as AnyMeasured
from microbench.study.stages import STAGES
from predictor.core.base.text_table import text_table
from predictor.core.costs.catalogue import catalogue
from predictor.core.costs.operator import Direction

LAST_S = 1.0  # of a sustained run: its rate at the end
NOT_MEASURED = "–"
Kind = TypeVar("Kind", Attention, GradientProducts, Launches, Overlap, Step, Sustained)
Row = Sequence[str]


def table(title: str, header: Row, rows: Sequence[Row]) -> str:
    """Return a titled table, its first column to the left and the others to the right; empty without rows."""
    return "\n".join([title, *text_table([header, *rows])]) if rows else ""


def best_us(measured: Pass) -> float | None:
    """Return the median of the kernels alone, else of the whole pass; None where it failed."""
    times = measured.kernel_us or measured.whole_us
    return median(times) if times else None


def _of(record: StageRecord, kind: type[Kind]) -> list[Kind]:
    return [entry.measured for entry in record.entries if isinstance(entry.measured, kind)]


def _rate(us: float | None, flops: float) -> str:
    """Return a time and its rate, « µs (TFLOP/s) »."""
    return NOT_MEASURED if us is None else f"{us:.1f} ({flops / us / 1e6:.0f})"


def _ratios(name: str, pairs: Iterable[tuple[float | None, float | None]]) -> str:
    """Return the median and the range of a ratio over the pairs that have both times."""
    ratios = sorted(a / b for a, b in pairs if a is not None and b is not None)
    if not ratios:
        return f"{name}: no shape has both"
    return f"{name}: median {median(ratios):.2f}, {ratios[0]:.2f} to {ratios[-1]:.2f}, {len(ratios)} shapes"


def attention(record: StageRecord) -> list[str]:
    """Return a table per direction, and the ratios of the backends."""
    shapes = sorted(_of(record, Attention), key=lambda each: (each.head_dim, each.heads, each.batch * each.sequence))
    names = list(dict.fromkeys(each.name for shape in shapes for each in shape.passes))
    texts = []
    for direction in Direction:
        rows, times = [], []
        for shape in shapes:
            sizes = (shape.batch, shape.sequence, shape.heads, shape.kv_heads, shape.head_dim, int(shape.causal))
            flops = catalogue()["grouped_query_attention"].work((*sizes, 0), direction, 1).flops
            us = {each.name: best_us(each) for each in shape.passes if each.direction is direction}
            times.append(us)
            rows.append([*map(str, sizes), *(_rate(us.get(name), flops) for name in names)])
        header = ["batch", "sequence", "heads", "kv heads", "head dim", "causal", *names]
        texts.append(table(f"Attention, {direction}: µs (TFLOP/s)", header, rows))
        texts += [
            _ratios(f"{name} ÷ {names[0]}, {direction}", ((us.get(name), us.get(names[0])) for us in times))
            for name in names[1:]
        ]
    return texts


def overlap(record: StageRecord) -> list[str]:
    """Return the table of products beside copies."""
    rows = []
    for each in sorted(_of(record, Overlap), key=lambda each: (each.m, each.k, each.n, each.programs)):
        alone, beside = median(each.product_alone_us), median(each.product_beside_us)
        copy, copy_beside = median(each.copy_alone_us), median(each.copy_beside_us)
        moved_gb_us = 2.0 * each.copy_bytes / 1e3
        free = each.multiprocessors - each.programs
        rows.append([
            f"{each.m} {each.k} {each.n}", str(each.programs), str(each.held), f"{alone:.1f}", f"{beside:.1f}",
            f"{beside / alone:.3f}", f"{each.multiprocessors / free:.3f}",
            f"{moved_gb_us / copy:.0f}", f"{moved_gb_us / copy_beside:.0f}", f"{copy_beside / copy:.3f}",
        ])  # fmt: skip
    header = [
        "m k n", "SMs asked", "SMs held", "product, µs", "beside copy, µs", "slow-down", "SMs ÷ free SMs",
        "copy, GB/s", "beside product, GB/s", "slow-down",
    ]  # fmt: skip
    return [table("Products beside a copy kernel (GB/s: read plus written)", header, rows)]


def gradient_products(record: StageRecord) -> list[str]:
    """Return the table of a linear layer's products, and the ratios of the weight gradient's forms."""
    layers = sorted(_of(record, GradientProducts), key=lambda each: (each.m, each.k, each.n))
    names = list(dict.fromkeys(each.name for layer in layers for each in layer.passes))
    rows, times = [], []
    for layer in layers:
        us = {each.name: best_us(each) for each in layer.passes}
        times.append(us)
        flops = 2.0 * layer.m * layer.k * layer.n
        rows.append([f"{layer.m} {layer.k} {layer.n}", *(_rate(us.get(name), flops) for name in names)])
    ratios = [
        _ratios(f"{name} ÷ forward", ((us.get(name), us.get("forward")) for us in times))
        for name in names
        if name != "forward"
    ]
    return [table("Products of linear layers (m k n): µs (TFLOP/s)", ["m k n", *names], rows), *ratios]


def _range(values: Iterable[float | None], digits: int = 0) -> str:
    """Return the first and the last of the values that are known."""
    known = [value for value in values if value is not None]
    return f"{known[0]:.{digits}f} → {known[-1]:.{digits}f}" if known else NOT_MEASURED


def _sustained_row(each: Sustained) -> list[str]:
    tflop = 2.0 * each.m * each.k * each.n / 1e6  # over µs: TFLOP/s
    burst, first = tflop / median(each.burst_us), tflop / each.blocks[0].us
    end_s = each.blocks[-1].end_s
    last = tflop / median(block.us for block in each.blocks if block.end_s > end_s - LAST_S)
    inside = each.moments[1:] or each.moments
    power = per_joule = NOT_MEASURED
    start, end = inside[0], inside[-1]
    if start.energy_j is not None and end.energy_j is not None and end.at_s > start.at_s:
        watts = (end.energy_j - start.energy_j) / (end.at_s - start.at_s)
        power = f"{watts:.0f}"
        mean = tflop / (sum(block.us for block in each.blocks) / len(each.blocks))
        per_joule = f"{mean * 1e3 / watts:.0f}" if watts else NOT_MEASURED
    reasons = dict.fromkeys(reason for moment in inside for reason in moment.event_reasons or ())
    return [
        f"{each.precision} {each.m} {each.k} {each.n}", f"{burst:.0f}", f"{first:.0f}", f"{last:.0f}",
        f"{last / burst:.3f}", _range(moment.sm_clock_mhz for moment in inside), power,
        _range(moment.temperature_c for moment in inside), per_joule, ", ".join(reasons) or NOT_MEASURED,
    ]  # fmt: skip


def sustained_products(record: StageRecord) -> list[str]:
    """Return the table of products without a pause."""
    header = [
        "precision m k n", "burst, TFLOP/s", "first block", f"last {LAST_S:g} s", "last ÷ burst", "SM clock, MHz",
        "mean power, W", "temperature, °C", "GFLOP/J", "clock event reasons",
    ]  # fmt: skip
    return [table("Products without a pause", header, [_sustained_row(each) for each in _of(record, Sustained)])]


def launches(record: StageRecord) -> list[str]:
    """Return the tables of launches and of the step."""
    rows = [
        [each.name, f"{median(each.host_us):.2f}", f"{min(each.host_us):.2f}", f"{median(each.device_us):.2f}"]
        for each in _of(record, Launches)
    ]
    machine = record.machine
    host = table(
        f"Host time per launch on {machine.processor}, {machine.cores} cores",
        ["launch", "median, µs", "fastest, µs", "GPU, µs"],
        rows,
    )
    steps = [
        [
            f"{each.name}, {each.form}",
            f"{median(each.device_us) / 1e3:.2f}",
            f"{median(each.wall_us) / 1e3:.2f}",
            f"{each.loss:.5f} after {each.steps}",
        ]
        for each in _of(record, Step)
    ]
    return [host, table("One training step", ["step", "GPU, ms", "wall, ms", "loss"], steps)]


TABLES: dict[str, Callable[[StageRecord], list[str]]] = {
    "attention": attention,
    "overlap": overlap,
    "gradient-products": gradient_products,
    "sustained-products": sustained_products,
    "launches": launches,
}


def _failed_passes(measured: AnyMeasured | None) -> list[tuple[str, str]]:
    """Return the failed passes of a part with their reasons, and those of which only the whole could be timed."""
    if not isinstance(measured, Attention | GradientProducts):
        return []
    return [
        (f"{each.name}, {each.direction}: {each.status}", "" if each.status is Status.HOST_BOUND else each.kernel)
        for each in measured.passes
        if each.status is not Status.OK
    ]


def left_out(record: StageRecord) -> list[str]:
    """Return a line per part, and per kind of pass, that was not measured."""
    lines = [
        f"{record.stage}, {entry.part}: {entry.status}: {entry.reason}"
        for entry in record.entries
        if entry.status is not Status.OK
    ]
    passes: dict[tuple[str, str], int] = {}
    for entry in record.entries:
        for key in _failed_passes(entry.measured):
            passes[key] = passes.get(key, 0) + 1
    lines += [
        f"{record.stage}, {name}{': ' if reason else ''}{reason} ({count} shapes)"
        for (name, reason), count in passes.items()
    ]
    if record.sessions[-1].finished is None:
        lines.append(f"{record.stage}: cut off; the same command with the same folder goes on")
    return lines


def report(folder: Path) -> str:
    """Return the tables of a study.

    Raises:
        MeasureError: the folder has no record, or a damaged one.
    """
    records = [record for name in STAGES if (record := read_record(folder, name)) is not None]
    if not records:
        raise MeasureError(f"{folder}: no record of a study ({', '.join(f'{name}.json' for name in STAGES)})")
    machine = records[0].machine
    versions = ", ".join(f"{name} {version}" for name, version in machine.versions.items())
    commits = ", ".join(dict.fromkeys(session.commit for record in records for session in record.sessions))
    first = min(session.started for record in records for session in record.sessions)
    texts = [f"{machine.device}, driver {machine.driver}; {versions}\n{machine.processor}; {first}; commit {commits}"]
    texts += [text for record in records for text in TABLES[record.stage](record)]
    missing = [name for name in STAGES if name not in {record.stage for record in records}]
    lines = [line for record in records for line in left_out(record)] + [f"{name}: not begun" for name in missing]
    if lines:
        texts.append("Not measured\n" + "\n".join(lines))
    return "\n\n".join(filter(None, texts))
