"""Find and read the traces of a job's ranks: files, folders of them, patterns."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from glob import glob, has_magic
from pathlib import Path

from predictor.replay.files.events import RankTrace
from predictor.replay.files.json_stream import NotATraceError
from predictor.replay.files.kineto import read_trace
from predictor.replay.files.record_model import RecordError

SUFFIXES = (".json", ".json.gz", ".json.tar.gz")
NUMBER = re.compile(r"(\d+)")


def read_traces(paths: Iterable[Path | str], *, partial: bool = False) -> list[RankTrace]:
    """Read one trace of each rank of a job.

    A trace that names no rank is given the lowest free one, in the order of the names (``trace_2`` before
    ``trace_10``), and a note on it. One that does not say how many ranks the job has is given the least number that
    fits all traces, noted too. In a folder, JSON files that are no traces are passed over and noted.

    Args:
        paths: files, folders with files or with folders of files, and patterns such as ``run/rank*.json.gz``.
        partial: some of the job's ranks may be missing. A trace alone is never checked for others.

    Returns:
        The traces in the order of their ranks.

    Raises:
        RecordError: there is no trace, a file cannot be read, two are of one rank, ranks are missing, or the traces are
            of jobs of different sizes, or a replay wrote one.
    """
    traces, notes = _read_each(paths)
    for trace in traces:
        if trace.is_replay:
            raise RecordError(
                f"{trace.path} is what replay --trace wrote, each rank in it replayed and measured; give the traces of "
                "the profiler that it was made from"
            )
    ranked = _with_ranks(traces)
    sizes = {trace.world_size: trace.path for trace in ranked if trace.world_size is not None}
    if len(sizes) > 1:
        (size, path), (other_size, other_path), *_ = sizes.items()
        raise RecordError(f"{path} is of a job of {size} ranks and {other_path} of {other_size}; give those of one job")
    if len(ranked) > 1 and not partial:
        _check_complete(ranked, next(iter(sizes), None))
    ranked = _with_world_size(ranked)
    if notes:
        ranked[0] = replace(ranked[0], notes=(*ranked[0].notes, *notes))
    return ranked


def trace_files(path: Path | str) -> list[Path]:
    """Return the files that a path stands for, in the order of their names.

    Raises:
        RecordError: there is none.
    """
    place = Path(path)
    if has_magic(str(path)) and not place.exists():
        matches = glob(str(path), recursive=True)  # noqa: PTH207 (a Path matches relative patterns only)
        files = [file for match in matches for file in _in_place(Path(match))]
        if not files:
            raise RecordError(f"no file matches {path}")
        return _in_order(files)
    files = _in_place(place)
    if not files:
        raise RecordError(f"{place} has no trace in it (.json or .json.gz)")
    return files


def _in_place(place: Path) -> list[Path]:
    """Return a file, or the files of a folder; those one folder below where it has none itself."""
    if not place.is_dir():
        return [place]
    files: list[Path] = []
    for pattern in ("*", "*/*"):
        files = files or [
            file
            for file in place.glob(pattern)
            if file.name.endswith(SUFFIXES) and not file.name.startswith(".") and file.is_file()
        ]
    return _in_order(files)


def _in_order(files: Iterable[Path]) -> list[Path]:
    """Return files by name, with the numbers in it as numbers."""
    return sorted(
        dict.fromkeys(files),
        key=lambda file: [int(part) if part.isdigit() else part for part in NUMBER.split(str(file))],
    )


def _read_each(paths: Iterable[Path | str]) -> tuple[list[RankTrace], list[str]]:
    """Return every file's trace once, and notes on the files that are none."""
    traces: dict[Path, RankTrace] = {}
    passed: list[tuple[Path, NotATraceError]] = []
    for path in paths:
        is_named = Path(path).is_file()
        for file in trace_files(path):
            if file.resolve() in traces:
                continue
            try:
                traces[file.resolve()] = read_trace(file)
            except NotATraceError as error:
                if is_named:
                    raise
                passed.append((file, error))
    if not traces:
        if passed:
            raise passed[0][1]
        raise RecordError("no trace is given; give files (.json, .json.gz), folders or patterns")
    return list(traces.values()), [f"{file.name} is no trace; passed over" for file, _ in passed]


def _with_ranks(traces: Sequence[RankTrace]) -> list[RankTrace]:
    """Return traces by rank, each with one.

    Raises:
        RecordError: two are of one rank.
    """
    by_rank: dict[int, RankTrace] = {}
    for trace in traces:
        if trace.rank is None:
            continue
        if trace.rank in by_rank:
            first = by_rank[trace.rank].path
            raise RecordError(f"{first} and {trace.path} are both of rank {trace.rank}; give one trace of each rank")
        by_rank[trace.rank] = trace
    rank = 0
    for trace in traces:
        if trace.rank is None:
            while rank in by_rank:
                rank += 1
            note = f"it does not say its rank; taken as rank {rank}"
            by_rank[rank] = replace(trace, rank=rank, notes=(*trace.notes, note))
    return [by_rank[rank] for rank in sorted(by_rank)]


def _with_world_size(traces: Sequence[RankTrace]) -> list[RankTrace]:
    """Return traces that all say how many ranks the job has: the least number that fits all of them."""
    ranks = max(len(traces), *(1 + (trace.rank or 0) for trace in traces), *(trace.world_size or 1 for trace in traces))
    unknown = next((at for at, trace in enumerate(traces) if trace.world_size is None), None)
    if unknown is None or ranks == 1:
        return list(traces)
    sized = [replace(trace, world_size=trace.world_size or ranks) for trace in traces]
    note = f"it does not say how many ranks the job has; taken as {ranks}"
    sized[unknown] = replace(sized[unknown], notes=(*sized[unknown].notes, note))
    return sized


def _check_complete(traces: Sequence[RankTrace], world_size: int | None) -> None:
    """Check that no rank is missing.

    Raises:
        RecordError: some are.
    """
    ranks = {trace.rank for trace in traces}
    expected = world_size or 1 + max(trace.rank or 0 for trace in traces)
    missing = [rank for rank in range(expected) if rank not in ranks]
    if missing:
        shown = ", ".join(map(str, missing[:8])) + (f" … {missing[-1]}" if len(missing) > 8 else "")
        are = "rank {} is" if len(missing) == 1 else "ranks {} are"
        raise RecordError(
            f"{traces[0].path} is of a job of {expected} ranks, but the trace of {are.format(shown)} missing; "
            "give one trace of every rank, one alone, or say that some are missing"
        )
