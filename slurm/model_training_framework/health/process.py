"""Counters of this process: CPU time, throttling, preemptions, garbage collection; memory and its limit.

Sources: getrusage(2); proc(5), /proc/PID/statm and mountinfo; Linux, Documentation/scheduler/sched-stats.rst
(/proc/PID/schedstat: nanoseconds on a CPU and waiting for one, of the main thread), admin-guide/cgroup-v2.rst
(cpu.stat, memory.max) and cgroup-v1 (cpu.stat's throttled_time in ns, memory.limit_in_bytes).
"""

from __future__ import annotations

import gc
import math
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from predictor.watch.events import (
    COLLECTED_SECONDS,
    CPU_SECONDS,
    INVOLUNTARY_SWITCHES,
    RECOMPILATIONS,
    RUN_QUEUE_SECONDS,
    THROTTLED_SECONDS,
)

if sys.platform != "win32":
    import resource

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE") if sys.platform != "win32" else 4096
FRESH_S = 0.02  # a step that is shorter need not pay for reading files
LARGEST_STAT = 4096  # bytes of a cpu.stat
UNLIMITED = 1 << 60  # cgroup v1 states no limit as the largest multiple of a page
THROTTLED = ((b"throttled_usec", 1e-6), (b"throttled_time", 1e-9))  # v2, v1


class Mount(NamedTuple):
    """A mounted cgroup hierarchy: the folder of this process and those above it, up to the mount."""

    folders: tuple[Path, ...]
    is_v2: bool


def cgroup_mounts(controller: str, proc: Path = Path("/proc/self")) -> Iterator[Mount]:
    """Yield the hierarchies that have a controller, v2's unified one included."""
    try:
        groups = [line.split(":", 2) for line in (proc / "cgroup").read_text(encoding="utf-8").splitlines()]
        mounts = (proc / "mountinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    paths = {name: path for _, names, path in groups for name in names.split(",")}
    for line in mounts:
        before, _, after = line.partition(" - ")
        kind, options = after.split()[0], after.split()[-1].split(",")
        if kind != "cgroup2" and not (kind == "cgroup" and controller in options):
            continue
        root, place = before.split()[3:5]
        path = Path(paths.get("" if kind == "cgroup2" else controller, "/"))
        inside = path.relative_to(root) if path.is_relative_to(root) else Path()
        top = Path(place)
        folder = top / inside if (top / inside).is_dir() else top
        above = [at for at in (folder, *folder.parents) if at.is_relative_to(top)]
        yield Mount(tuple(above), kind == "cgroup2")


def resident_limit_bytes() -> float | None:
    """Return how much memory this process may come to hold: by its cgroups, or by the machine."""
    limits: list[int] = []
    for mount in cgroup_mounts("memory"):
        for folder in mount.folders:
            try:
                text = (folder / ("memory.max" if mount.is_v2 else "memory.limit_in_bytes")).read_text(encoding="utf-8")
            except OSError:
                continue
            limits += [int(text)] if text.strip().isdigit() else []
    if sys.platform != "win32":
        limits.append(os.sysconf("SC_PHYS_PAGES") * _PAGE_BYTES)
    return min((float(limit) for limit in limits if 0 < limit < UNLIMITED), default=None)


class ProcessCounters:
    """Reads what the kernel and the interpreter count for this process, in microseconds of time.

    Attributes:
        memory: that the process holds and its limit, of the limits the one that is nearest; None: not known.
    """

    def __init__(self) -> None:
        """Open the files once."""
        self._collected_s = 0.0
        self._collecting_since = 0.0
        gc.callbacks.append(self._note_collection)
        self._stats = [
            descriptor
            for mount in cgroup_mounts("cpu")
            for folder in mount.folders
            if (descriptor := _throttling_file(folder / "cpu.stat")) is not None
        ]
        self._statm = _opened(Path("/proc/self/statm"))
        self._schedule = _opened(Path("/proc/self/schedstat"))
        self._resident_limit = resident_limit_bytes()
        self._read_at = -math.inf
        self._of_files: dict[str, float] = {}
        self.memory: tuple[float, float | None] | None = None

    def close(self) -> None:
        """Close the files."""
        if self._note_collection in gc.callbacks:
            gc.callbacks.remove(self._note_collection)
        for descriptor in (*self._stats, self._statm, self._schedule):
            if descriptor is not None:
                os.close(descriptor)
        self._stats, self._statm, self._schedule, self.memory = [], None, None, None

    def read(self) -> dict[str, float]:
        """Return the cumulative counters; those of files as they were at most ``FRESH_S`` ago."""
        found: dict[str, float] = {COLLECTED_SECONDS: round(self._collected_s, 6)}
        if sys.platform != "win32":
            usage = resource.getrusage(resource.RUSAGE_SELF)
            found[CPU_SECONDS] = round(usage.ru_utime + usage.ru_stime, 6)
            found[INVOLUNTARY_SWITCHES] = usage.ru_nivcsw
        now = time.monotonic()
        if now - self._read_at >= FRESH_S:
            self._read_at = now
            self._read_files()
        found |= self._of_files
        dynamo: Any = sys.modules.get("torch._dynamo.utils")
        if dynamo is not None:
            found[RECOMPILATIONS] = dynamo.counters["stats"]["unique_graphs"]
        return found

    def _read_files(self) -> None:
        if self._stats:
            self._of_files[THROTTLED_SECONDS] = round(sum(_throttled_s(descriptor) for descriptor in self._stats), 6)
        if self._schedule is not None:
            self._of_files[RUN_QUEUE_SECONDS] = round(1e-9 * int(os.pread(self._schedule, 128, 0).split()[1]), 6)
        if self._statm is not None:
            self.memory = self._read_memory(self._statm)

    def _read_memory(self, statm: int) -> tuple[float, float | None]:
        size, resident, _, _, _, data, *_ = (int(part) * _PAGE_BYTES for part in os.pread(statm, 128, 0).split())
        known = [(float(resident), self._resident_limit)]
        if sys.platform != "win32":
            for held, kind in ((data, resource.RLIMIT_DATA), (size, resource.RLIMIT_AS)):
                limit = resource.getrlimit(kind)[0]
                if 0 < limit < UNLIMITED:
                    known.append((float(held), float(limit)))
        return max(known, key=lambda pair: pair[0] / pair[1] if pair[1] else 0.0)

    def _note_collection(self, phase: str, _info: dict[str, int]) -> None:
        if phase == "start":
            self._collecting_since = time.perf_counter()
        else:
            self._collected_s += time.perf_counter() - self._collecting_since


def _opened(path: Path) -> int | None:
    try:
        return os.open(path, os.O_RDONLY)
    except OSError:
        return None


def _throttling_file(path: Path) -> int | None:
    """Open a cpu.stat that counts throttling."""
    descriptor = _opened(path)
    if descriptor is not None and b"throttled_" not in os.pread(descriptor, LARGEST_STAT, 0):
        os.close(descriptor)
        return None
    return descriptor


def _throttled_s(descriptor: int) -> float:
    try:
        stat = os.pread(descriptor, LARGEST_STAT, 0)
    except OSError:  # the cgroup was removed
        return 0.0
    for key, unit in THROTTLED:
        _, found, rest = stat.partition(key + b" ")
        if found:
            return unit * int(rest.split(maxsplit=1)[0])
    return 0.0
