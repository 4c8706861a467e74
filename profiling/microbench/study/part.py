"""One part of a stage, and the loop over a stage's parts: each is saved as it ends, one that fails costs itself."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from microbench.device import Device, device_state, library_versions, new_session, processor_model
from microbench.errors import TableError
from microbench.provenance import now
from microbench.rows import Status
from microbench.study.record import (
    Attention,
    Entry,
    GradientProducts,
    Launches,
    Machine,
    Overlap,
    StageRecord,
    Step,
    Sustained,
    read_record,
    write_record,
)
from microbench.timing import KERNEL_ERRORS, failure_of

Result = Attention | GradientProducts | Launches | Overlap | Step | Sustained
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a stage.

    Attributes:
        name: unique in the stage, and the same in every study.
        seconds: that it may take; it is not begun where fewer are left.
        measure: returns what is stored.
    """

    name: str
    seconds: float
    measure: Callable[[], Result]


@dataclass(slots=True)
class Outcome:
    """Number of parts by how they ended; ``is_lost``: the GPU fails every later call of this process."""

    measured: int = 0
    there: int = 0
    failed: int = 0
    not_begun: int = 0
    is_lost: bool = False


def machine_of(device: Device) -> Machine:
    """Return the identity of this machine."""
    return Machine(
        device=device.name,
        driver=device.driver,
        versions=library_versions(device.kind),
        processor=processor_model(),
        cores=len(os.sched_getaffinity(0)),
    )


def open_record(folder: Path, stage: str, device: Device) -> StageRecord:
    """Return a stage's record with a session that begins now, the parts of earlier studies kept; write it.

    Raises:
        TableError: the record is damaged, of another machine, or cannot be written.
    """
    machine, session = machine_of(device), new_session(device.kind)
    earlier = read_record(folder, stage)
    if earlier is not None and earlier.machine != machine:
        fields = (name for name in Machine.model_fields if getattr(earlier.machine, name) != getattr(machine, name))
        field = next(fields)
        was, here = getattr(earlier.machine, field), getattr(machine, field)
        raise TableError(f"{folder}: {field} was {was}, is {here}; choose another --out")
    if earlier is None:
        record = StageRecord(stage=stage, machine=machine, sessions=(session,))
    else:
        record = earlier.model_copy(update={"sessions": (*earlier.sessions, session)})
    write_record(folder, record)
    return record


def tried(part: Part, is_lost: Callable[[], bool]) -> Entry:
    """Measure a part; an error becomes its entry, and so does a pass that lost the GPU."""
    began = time.monotonic()
    measured: Result | None = None
    status, reason = Status.OK, ""
    try:
        measured = part.measure()
        lost = (each for each in getattr(measured, "passes", ()) if each.status is Status.DEVICE_LOST)
        if (first := next(lost, None)) is not None:
            status, reason = first.status, f"{first.name}, {first.direction}: {first.kernel}"
    except (MemoryError, *KERNEL_ERRORS) as error:
        status, reason = failure_of(error.with_traceback(None), is_lost)
    seconds = round(time.monotonic() - began, 1)
    return Entry(part=part.name, status=status, reason=reason, seconds=seconds, measured=measured)


def run_parts(
    parts: Sequence[Part],
    record: StageRecord,
    folder: Path,
    deadline: float,
    is_lost: Callable[[], bool],
    say: Say,
) -> Outcome:
    """Measure the parts that the record lacks until the deadline; save each as soon as it has ended.

    Args:
        parts: in the order to measure them.
        record: of the stage, as ``open_record`` returns it.
        folder: of the study.
        deadline: of ``time.monotonic``.
        is_lost: returns whether the GPU is lost; called after a failure, lets go of the failed part's memory.
        say: takes a line of progress.

    Raises:
        TableError: the record cannot be written.
    """
    missing = record.missing([part.name for part in parts])
    by_name = {part.name: part for part in parts}
    outcome = Outcome(there=len(parts) - len(missing), not_begun=len(missing))
    for part in (by_name[name] for name in missing):
        if time.monotonic() + part.seconds > deadline:
            continue
        entry = tried(part, is_lost)
        record = record.with_entry(entry)
        write_record(folder, record)
        outcome.not_begun -= 1
        outcome.measured += entry.status is Status.OK
        if entry.status is not Status.OK:
            outcome.failed += 1
            say(f"{record.stage}, {part.name}: {entry.status}: {entry.reason}")
            outcome.is_lost = entry.status is Status.DEVICE_LOST or is_lost()
            if outcome.is_lost:
                break
    last = record.sessions[-1].model_copy(update={"finished": now(), "state_after": device_state("cuda")})
    write_record(folder, record.model_copy(update={"sessions": (*record.sessions[:-1], last)}))
    return outcome
