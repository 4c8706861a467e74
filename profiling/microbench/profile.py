"""Measure operators: every shape of this shard of a sweep that no earlier run has measured.

A call that fails is a row, and the run continues; the next run retries it after the new calls. Where the GPU itself is
lost, every later call would fail, so the run ends at once. The next one then begins with the other operators.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from microbench.attention import SETTING
from microbench.call import Call, Maker
from microbench.clocks import Clock
from microbench.device import Device, device_state, library_versions, new_session
from microbench.errors import MeasureError, TableError
from microbench.kernels import build_function
from microbench.provenance import Identity
from microbench.reference import reference_us
from microbench.rows import Measurement, Status
from microbench.sweep import Sweep, shapes_of
from microbench.table import Writer, read_table, table_path
from microbench.timing import Timed, clock_for, take_turns
from predictor.core.costs.catalogue import operator_named
from predictor.core.costs.operator import Operator, Shape
from predictor.core.costs.streams import PARAMETER_LIST

# Inputs, outputs, gradients and the copies that unfused kernels make, over the bytes that the work formula counts.
MEMORY_OVER_WORK = 3.0
# An optimizer's list of parameters, gradients and moments is held once: what a step reads and writes is more than it.
LIST_OVER_WORK = 1.0
MEMORY_SHARE = 0.25  # of the free memory, for a batch of more than one


@dataclass(frozen=True, slots=True)
class Job:
    """Shapes, device and results folder of a run.

    Attributes:
        results: folder of one system's tables.
        shard: (i, n): every n-th shape, starting with the i-th.
        deadline: of ``time.monotonic``, after which no shape is begun.
        in_order: each operator takes what it needs of the time; else an equal share of what those before it left.
        threads: that torch uses.
    """

    results: Path
    device: Device
    precision: str
    sweep: Sweep
    shard: tuple[int, int] = (0, 1)
    deadline: float = float("inf")
    in_order: bool = False
    threads: int = 1

    def __post_init__(self) -> None:
        """Check the precision.

        Raises:
            MeasureError: the device does not compute in it.
        """
        if self.precision not in self.device.precisions:
            known = ", ".join(self.device.precisions)
            raise MeasureError(f"precision is {self.precision}; {self.device.name} is measured in {known}")

    @property
    def worker(self) -> str:
        """Return the shard as in file names, e.g. 0of4."""
        return f"{self.shard[0]}of{self.shard[1]}"

    def path(self, operator: Operator) -> Path:
        """Return the table of one operator."""
        return table_path(self.results, "operator", operator.full_name, self.precision, self.worker)

    def identity(self, operator: Operator) -> Identity:
        """Return the identity of an operator's table."""
        return Identity(
            kind="operator",
            name=operator.name,
            precision=self.precision,
            worker=self.worker,
            dimensions=operator.dimensions,
            directions=operator.directions,
            device=self.device.name,
            device_kind=self.device.kind,
            driver=self.device.driver,
            versions=library_versions(self.device.kind),
            settings=({"threads": str(self.threads)} if self.device.kind == "cpu" else {})
            | ({SETTING: operator.kernel} if operator.kernel else {}),
            config_hash=self.sweep.config_hash,
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """Counts of an operator's calls in a run: measured now, earlier, without a time, left over, with a time."""

    operator: str
    path: Path
    measured: int
    earlier: int
    failed: int
    left: int
    good: int
    reason: str

    @property
    def is_failure(self) -> bool:
        """Return whether calls were tried, and neither these nor earlier ones have a time."""
        return self.failed > 0 and self.good == 0


class DeviceLostError(MeasureError):
    """The GPU fails every later call of this process."""


def memory_bytes(operator: Operator, shape: Shape, precision: str) -> float:
    """Estimate the memory of a call."""
    works = [operator.work(shape, direction, 1) for direction in operator.directions]
    times = LIST_OVER_WORK if operator.dimensions == PARAMETER_LIST else MEMORY_OVER_WORK
    return times * operator.byte_scale(precision) * max(work.size_bytes for work in works)


def timed(job: Job, operator: Operator, shape: Shape, clock: Clock) -> Timed:
    """Build a call and warm it up; a call larger than the free memory fails before it allocates."""

    def build() -> Call:
        needed = memory_bytes(operator, shape, job.precision)
        if needed > job.device.memory_bytes:
            raise MemoryError(f"needs about {needed / 1e9:.1f} GB; {job.device.memory_bytes / 1e9:.1f} GB are free")
        return build_function(operator.name)(shape, Maker(job.device.kind, job.precision, operator.kernel))

    return Timed(build, shape, operator.directions, clock, job.sweep.timing)


def batches(job: Job, operator: Operator, shapes: Iterable[Shape]) -> Iterator[list[Shape]]:
    """Cut shapes into batches that take turns and fit into memory together, a large one alone."""
    batch: list[Shape] = []
    taken = 0.0
    for shape in shapes:
        needed = memory_bytes(operator, shape, job.precision)
        if batch and (len(batch) == job.sweep.timing.batch or taken + needed > MEMORY_SHARE * job.device.memory_bytes):
            yield batch
            batch, taken = [], 0.0
        batch.append(shape)
        taken += needed
    if batch:
        yield batch


def profile(job: Job, names: Iterable[str], progress: Callable[[str], None]) -> list[Outcome]:
    """Measure operators one after the other; return the outcome of each.

    Raises:
        MeasureError: a table cannot be written, or no shape of the sweep is small enough.
        DeviceLostError: the GPU is lost; what was measured before is kept.
    """
    operators = [operator_named(name) for name in names]
    wanted = {operator.full_name: shapes_of(operator.name, job.sweep, job.precision) for operator in operators}
    operators.sort(key=lambda operator: _lost_the_device(job.path(operator)))
    clock = clock_for(job.device, job.sweep.timing)
    before_us = reference_us(job.device.kind)
    outcomes = []
    for number, operator in enumerate(operators):
        shapes = wanted[operator.full_name][job.shard[0] :: job.shard[1]]
        sharing = 1 if job.in_order else len(operators) - number
        own_end = share_end(time.monotonic(), job.deadline, sharing)
        outcome, before_us = _profile_one(replace(job, deadline=own_end), operator, shapes, clock, before_us)
        outcomes.append(outcome)
        progress(_line(outcomes[-1]))
    return outcomes


def _lost_the_device(path: Path) -> bool:
    """Return whether an earlier run ended with a call of this table."""
    try:
        return path.is_file() and any(row.status is Status.DEVICE_LOST for row in read_table(path).rows)
    except TableError:  # torn by a kill, which a resumed run repairs, or damaged, which it reports
        return False


def share_end(now: float, deadline: float, left: int) -> float:
    """Return when the next of so many operators ends, if each is to have as much of the time that is left.

    >>> share_end(100.0, 160.0, 3), share_end(100.0, float("inf"), 3), share_end(170.0, 160.0, 3)
    (120.0, inf, 160.0)
    """
    return now + (deadline - now) / left if now < deadline else deadline


def _profile_one(
    job: Job, operator: Operator, shapes: list[Shape], clock: Clock, before_us: float
) -> tuple[Outcome, float]:
    """Return the outcome of an operator, and the reference kernel's time after it, given that before it."""
    measured = failed = left = 0
    with Writer(job.path(operator), job.identity(operator), new_session(job.device.kind)) as table:
        missing = [shape for shape in shapes if not table.has(shape)]
        for batch in batches(job, operator, sorted(missing, key=table.failed)):
            if time.monotonic() > job.deadline:
                left += len(batch)
                continue
            for rows in _measured(job, operator, batch, clock):
                table.append(rows)
                measured += 1
                failed += not all(row.status.is_timed for row in rows)
                if any(row.status is Status.DEVICE_LOST for row in rows):
                    where = f"{operator.full_name} {'×'.join(map(str, rows[0].shape))}"
                    raise DeviceLostError(
                        f"{where}: the GPU is lost: {rows[0].kernel}; every row so far is kept, and the same command "
                        "goes on with the other operators first"
                    )
            _release(job.device)
        after_us = before_us
        if measured:
            after_us = reference_us(job.device.kind)
            table.note_reference(before_us, after_us)
        table.finish(device_state(job.device.kind))
        good = sum(table.has(shape) for shape in shapes)
        reason = next((row.kernel for row in table.rows if not row.status.is_timed), "")
    earlier = len(shapes) - len(missing)
    return Outcome(operator.full_name, table.path, measured, earlier, failed, left, good, reason), after_us


def _measured(job: Job, operator: Operator, shapes: Iterable[Shape], clock: Clock) -> Iterator[list[Measurement]]:
    """Yield the rows of each call as soon as it is known; nothing holds its tensors any more by then."""
    for call in take_turns([timed(job, operator, shape, clock) for shape in shapes]):
        yield call.finish()


def _release(device: Device) -> None:
    """Free what the last shape held, so that the next one has all memory."""
    gc.collect(0)
    if device.kind == "cuda":
        import torch

        torch.cuda.empty_cache()


def _line(outcome: Outcome) -> str:
    parts = [f"{outcome.operator}: {outcome.measured} measured"]
    if outcome.earlier:
        parts.append(f"{outcome.earlier} there already")
    if outcome.failed:
        parts.append(f"{outcome.failed} without a time: {outcome.reason}")
    if outcome.left:
        parts.append(f"{outcome.left} left: out of time")
    return ", ".join(parts)
