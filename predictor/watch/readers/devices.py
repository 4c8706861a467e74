"""Readings of GPUs from nvidia-smi and DCGM, and what Slurm's accounting says of a job."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from predictor.watch.events import DeviceSample, End, Event
from predictor.watch.readers.lines import LineRecords
from predictor.watch.readers.names import number
from predictor.watch.readers.nodes import host_file, nodes
from predictor.watch.readers.prefix import Clock
from predictor.watch.readers.records import Table
from predictor.watch.readers.tracker import Job

MIB = 2.0**20
LARGEST_LIST = 1 << 22  # bytes
# Bits of clocks_event_reasons.active (once clocks_throttle_reasons), nvml.h. An idle GPU is not throttled.
REASONS = {
    0x2: "applications_clocks_setting",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}
_REASON = re.compile(r"clocks_(?:throttle|event)_reasons\.(\w+)")
# Columns by nvidia-smi's names without their unit, and their factor.
COLUMNS = {
    "clocks.sm": ("sm_clock_mhz", 1.0),
    "clocks.current.sm": ("sm_clock_mhz", 1.0),
    "power.draw": ("power_w", 1.0),
    "power.draw.instant": ("power_w", 1.0),
    "power.draw.average": ("power_w", 1.0),
    "power.limit": ("power_limit_w", 1.0),
    "enforced.power.limit": ("power_limit_w", 1.0),
    "temperature.gpu": ("temperature_c", 1.0),
    "utilization.gpu": ("utilization", 1e-2),
    "memory.used": ("memory_bytes", MIB),
    "memory.total": ("memory_limit_bytes", MIB),
    # dcgmi dmon, by the short names of DCGM's fields.
    "SMCLK": ("sm_clock_mhz", 1.0),
    "POWER": ("power_w", 1.0),
    "PMLMT": ("power_limit_w", 1.0),
    "TMPTR": ("temperature_c", 1.0),
    "GPUTL": ("utilization", 1e-2),
    "FBUSD": ("memory_bytes", MIB),
    "FBTTL": ("memory_limit_bytes", MIB),
}
ECC = ("ecc.errors.uncorrected.volatile.total", "ecc.errors.uncorrected.aggregate.total", "EDVOL", "EDDBE")
DEVICE = ("uuid", "gpu_uuid", "index", "pci.bus_id", "gpu_bus_id", "name")


def reasons(bits: int) -> frozenset[str]:
    """Return the names of the reasons of a bit mask.

    >>> sorted(reasons(0x44))
    ['hw_thermal_slowdown', 'sw_power_cap']
    """
    return frozenset(name for bit, name in REASONS.items() if bits & bit)


def _sample(cells: Mapping[str, str], device: str, at: float | None, host: str) -> DeviceSample | None:
    measured: dict[str, float] = {}
    active: set[str] = set()
    for name, cell in cells.items():
        if (column := COLUMNS.get(name)) is not None:
            value = number(cell.encode("utf-8", "replace"))
            if value is not None and abs(value) < 1e15:
                measured[column[0]] = value * column[1]
        elif (reason := _REASON.fullmatch(name)) is not None or name == "DVCCTR":
            if reason is not None and reason[1] != "active":
                active |= {reason[1]} if cell == "Active" else set()
            elif re.fullmatch(r"0[xX][0-9a-fA-F]{1,16}|\d{1,18}", cell):
                active |= reasons(int(cell, 0) if "x" in cell.lower() else int(cell))
    errors = next((found for name in ECC if (found := number(cells.get(name, "").encode())) is not None), None)
    if not measured and not active and errors is None:
        return None
    return DeviceSample(
        device,
        at,
        host,
        **measured,
        throttle_reasons=frozenset(active - {"gpu_idle"}),
        ecc_errors=int(errors) if errors is not None and abs(errors) < 1e15 else None,
    )


def nvidia_smi(host: str = "") -> Table:
    """Return the reader of ``nvidia-smi --query-gpu=… --format=csv``, with a header, units or none."""
    clock = Clock()

    def row(cells: Mapping[str, str]) -> Iterator[Event]:
        named = {name.partition(" [")[0].strip(): cell for name, cell in cells.items()}
        at = clock.at(named.get("timestamp", "").encode("utf-8", "replace").replace(b"/", b"-"))
        device = next((named[name] for name in DEVICE if named.get(name)), "")
        sample = _sample(named, device, at, named.get("hostname", host))
        if sample is not None:
            yield sample

    return Table(row)


class Dmon(LineRecords):
    """Reads ``dcgmi dmon``: a header of short names after ``#Entity``, and a row for each GPU."""

    def __init__(self, host: str = "") -> None:
        """Begin without a header."""
        self._host = host
        super().__init__([b"#Entity", b"# Entity", b"GPU "])
        self._header: list[str] = []

    def _events(self, lines: Iterable[tuple[bytes, int]]) -> Iterator[Event]:
        for line, _ in lines:
            words = line.decode("utf-8", "replace").replace("# Entity", "#Entity").split()
            if words[0] == "#Entity":
                self._header = words[1:]
            elif words[0] == "GPU" and len(words) > 2:
                sample = _sample(dict(zip(self._header, words[2:], strict=False)), words[1], None, self._host)
                if sample is not None:
                    yield sample


ENDED = (
    "COMPLETED",
    "FAILED",
    "TIMEOUT",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "PREEMPTED",
    "BOOT_FAIL",
    "DEADLINE",
    "CANCELLED",
)


class Accounting(LineRecords):
    """Reads ``sacct --parsable2``: how jobs ended, and their nodes. Steps of a job (``123.batch``) end with it."""

    def __init__(self, jobs: list[Job]) -> None:
        """Begin without a header; jobs are added to the run's."""
        self._jobs = jobs
        super().__init__([b"|"])
        self._header: list[str] = []
        self._clock = Clock()

    def _events(self, lines: Iterable[tuple[bytes, int]]) -> list[Event]:
        ends: list[Event] = []
        for line, _ in lines:
            cells = line.decode("utf-8", "replace").strip().split("|")
            if "State" in cells:
                self._header = cells
                continue
            row = dict(zip(self._header, cells, strict=False))
            state = row.get("State", "").partition(" ")[0].rstrip("+")
            if "." in row.get("JobID", ""):
                continue
            if hosts := nodes(row.get("NodeList", "")):
                self._jobs.append(Job(self._clock.at(row.get("Start", "").encode()), hosts))
            if state in ENDED:
                ends.append(End(state, self._clock.at(row.get("End", "").encode())))
        return ends


class HostFile:
    """Reads a list of a run's nodes, a line each."""

    def __init__(self, jobs: list[Job]) -> None:
        """Begin a file; its nodes are added to the run's jobs."""
        self._jobs = jobs
        self._data = b""

    def feed(self, block: bytes) -> Iterator[Event]:
        """Keep the file, which says nothing of a time."""
        self._data = (self._data + block)[:LARGEST_LIST]
        return iter(())

    def settle(self) -> Iterator[Event]:
        """Note the nodes."""
        return self.finish()

    def finish(self) -> Iterator[Event]:
        """Note the nodes."""
        if hosts := host_file(self._data.decode("utf-8", "replace")):
            self._jobs.append(Job(None, hosts))
        self._data = b""
        return iter(())
