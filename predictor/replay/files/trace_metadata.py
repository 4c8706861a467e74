"""Metadata of a trace: rank, world size, process groups, device."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from predictor.replay.files.events import ON_GPU, Category, Row, TraceEvent
from predictor.replay.files.json_stream import TraceFile
from predictor.replay.files.spellings import ACCELERATORS

CUDA, ROCM, CPU = "cuda", "rocm", "cpu"
RANK_IN_NAME = re.compile(r"(?<![a-z])rank[-_ =]?(\d+)(?!\d)", re.IGNORECASE)
ROCM_DEVICE = re.compile(r"\b(amd|radeon|instinct|mi\d{2,3}[a-z]?|gfx\d+)\b", re.IGNORECASE)
STARTS_ON_GPU = ("Launch", "Memcpy", "Memset")


class TraceMetadata(NamedTuple):
    """As in RankTrace; ``base_ns`` is what the file's times count from."""

    rank: int | None
    world_size: int | None
    backend: str
    device_name: str
    base_ns: float
    groups: Mapping[str, Sequence[int]]
    notes: Sequence[str]


def rank_in_name(path: Path) -> int | None:
    """Return the rank that a file's name, or that of its folder, says after the word « rank »; None: none."""
    for name in (path.name, path.parent.name):
        numbers = {int(number) for number in RANK_IN_NAME.findall(name)}
        if len(numbers) == 1:
            return numbers.pop()
    return None


def read_metadata(
    file: TraceFile, events: Sequence[TraceEvent], rows: Sequence[Row], kinds: Iterable[str] = ()
) -> TraceMetadata:
    """Return where a trace comes from, as far as it says so.

    Args:
        file: what stands beside the events.
        events: of the trace.
        rows: of the events.
        kinds: their categories as the file has them.
    """
    notes = []
    told = file.facts.get("distributedInfo")
    job: Mapping[str, Any] = told if isinstance(told, dict) else {}
    rank, world_size = _count(job.get("rank"), 0), _count(job.get("world_size"), 1)
    named = rank_in_name(file.path)
    if rank is None:
        rank = named
    elif named is not None and named != rank:
        notes.append(f"it is of rank {rank} by its distributedInfo, and {named} by its name")
    if rank is not None and world_size is not None and rank >= world_size:
        notes.append(f"its rank is {rank} of {world_size} ranks; the number of ranks is left unknown")
        world_size = None
    device_name = _device_name(file.facts.get("deviceProperties"), events, rows)
    base = file.facts.get("baseTimeNanoseconds")
    base_ns = float(base) if isinstance(base, int | float) and not isinstance(base, bool) else 0.0
    backend = _accelerator(kinds) or _backend(events, rows, device_name)
    return TraceMetadata(rank, world_size, backend, device_name, base_ns, _groups(job), notes)


def _count(value: object, least: int) -> int | None:
    """Return a number of the trace's job; None where it is none."""
    if isinstance(value, str) and value.strip().isdecimal():
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= least else None


def _groups(job: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the ranks of the process groups that the job lists."""
    listed = job.get("pg_config")
    groups: dict[str, tuple[int, ...]] = {}
    for group in listed if isinstance(listed, list) else ():
        ranks = group.get("ranks") if isinstance(group, dict) else None
        if isinstance(ranks, list) and ranks and all(isinstance(rank, int) for rank in ranks):
            groups[str(group.get("pg_name", len(groups)))] = tuple(ranks)
    return groups


def _device_name(listed: object, events: Sequence[TraceEvent], rows: Sequence[Row]) -> str:
    """Return the name of the GPU on which most ran; of the only kind where nothing ran."""
    devices = [device for device in listed if isinstance(device, dict)] if isinstance(listed, list) else []
    names = {str(device.get("id", number)): str(device.get("name", "")) for number, device in enumerate(devices)}
    by_device: Counter[str] = Counter()
    for row, count in Counter(map(itemgetter(2), events)).items():
        if rows[row].is_gpu:
            by_device[rows[row].process] += count
    if by_device:
        most = by_device.most_common(1)[0][0]
        if most in names:
            return names[most]
    return next(iter(names.values())) if len(set(names.values())) == 1 else ""


def _accelerator(kinds: Iterable[str]) -> str:
    """Return the name of an accelerator that has categories of its own; empty: none has."""
    prefixes = {kind.lower().partition("_")[0] for kind in kinds}
    return next((name for name in ACCELERATORS if name in prefixes), "")


def _backend(events: Sequence[TraceEvent], rows: Sequence[Row], device_name: str) -> str:
    """Return what computed: a GPU where something ran on it or was launched, and of the maker that its calls tell."""
    calls = {event.name for event in events if event.category is Category.RUNTIME}
    streams = [row.is_gpu for row in rows]
    is_hip = any(call.startswith("hip") for call in calls)
    launches = any(part in call for call in calls for part in STARTS_ON_GPU)
    if not launches and not any(streams[event.row] and event.category in ON_GPU for event in events):
        return CPU
    if is_hip or (not any(call.startswith("cu") for call in calls) and ROCM_DEVICE.search(device_name)):
        return ROCM
    return CUDA
