"""Sources of the paths that a user names: files, patterns of files, and the folder of a run."""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from heapq import merge
from itertools import chain
from math import inf
from pathlib import Path

from predictor.core.base.errors import ConfigError
from predictor.watch.events import Event
from predictor.watch.readers.pattern import HELP, pattern_format
from predictor.watch.readers.tracker import StepTracker
from predictor.watch.sources.growing_file import is_rotated
from predictor.watch.sources.telling import (
    MESSAGES,
    TELEMETRY_NAME,
    TEXT_LOG,
    FileKind,
    is_headless,
    is_text,
    kind_of,
    known_names,
    like_a_step,
    log_kind,
    rank_in,
)
from predictor.watch.sources.text_source import FileSource, Reader
from predictor.watch.sources.trainer_state import TrainerState

DEEPEST = 4  # folders below the one of a run
MOST_FILES = 20_000
LOOKED_FOR_EVERY_S = 5.0
MOST_LOOKING = 0.005  # share of the time that looking for new files may take
STALE_S = 600.0  # a log in which nothing was told for so long says nothing more
_DIGITS = re.compile(r"\d+")
SHOWN = 8
MANY, SMALL_BLOCK = 16, 1 << 16  # files side by side, from which on each is read in small blocks
LOOKED_AGAIN = 1 << 20
# Names of logs in a folder: slurm-12.out, train.o1234 of PBS, stderr; the rest are weights, data and sources.
_LOG = re.compile(
    r"(?:^|\.)(?:log|out|err|txt|jsonl|csv|wandb|stdout|stderr|[oe]\d+|\d{1,4})(?:\.gz)?$|tfevents|^[\w-]+$"
)


class Run:
    """The files of one run, named or found in folders; files that appear later are read from then on.

    Of several kinds of files that state the run's steps one is read, the first of ``telling``'s order that is there
    when the first is found. Its files follow each other in the order in which they were written, as those of jobs do;
    files of several ranks are read side by side. Side files are read beside them, other logs for their messages.
    """

    def __init__(self, paths: Sequence[Path], pattern: str | None, is_live: bool) -> None:
        """Look at the paths.

        Raises:
            ConfigError: a named file is of no known format, or the pattern is none.
        """
        self._paths = paths
        self._own = None if pattern is None else log_kind(pattern_format(pattern))
        self._is_live = is_live
        self._tracker = StepTracker()
        self._streams: dict[object, list[FileSource | TrainerState]] = {}
        self._seen: set[Path] = set()
        self._untold: dict[Path, int] = {}  # sizes at which files were looked at in vain
        self._left: list[str] = []
        self._main: tuple[str, str] | None = None  # format and shape of the path of the files that state steps
        self._look_at = 0.0  # time of the next look at the folders
        self._look(is_first=True)

    @property
    def description(self) -> str:
        """Return the files that are read, and those that are not."""
        read = [source.description for stream in self._streams.values() for source in stream]
        more = [f"{len(read) - SHOWN} more files"] if len(read) > SHOWN else []
        return (
            "; ".join([*read[:SHOWN], *more, *self._left[:SHOWN]]) or f"waiting for {', '.join(map(str, self._paths))}"
        )

    def poll(self) -> Iterator[Event]:
        """Return the events since the last call, those of files side by side in the order of their times."""
        if self._is_live and time.monotonic() >= self._look_at:
            self._look()
        # Side files first: what they say of the run's nodes is wanted with its first step.
        sources = sorted(self._streams.items(), key=lambda stream: not isinstance(stream[0], Path))
        streams = [chain.from_iterable(source.poll() for source in stream) for _, stream in sources]
        yield from streams[0] if len(streams) == 1 else in_time(streams)

    def _look(self, is_first: bool = False) -> None:
        """Find files that were not there, or said nothing yet."""
        began = time.monotonic()
        told: dict[Path, FileKind] = {}
        for path, is_named in self._files():
            if path in self._seen:
                continue
            kind = self._own if self._own is not None and is_named else self._kind(path)
            if kind is not None:
                told[path] = kind
            elif is_named and is_first:
                _refuse(path)
        self._take(told)
        now = time.monotonic()
        self._look_at = now + max(LOOKED_FOR_EVERY_S, (now - began) / MOST_LOOKING)

    def _files(self) -> Iterator[tuple[Path, bool]]:
        for path in self._paths:
            if path.is_dir():
                yield from ((found, self._own is not None) for found in _below(path))
            elif path.exists():
                yield path, True

    def _kind(self, path: Path) -> FileKind | None:
        """Return what a file is; a file that was looked at in vain is looked at again when it has doubled."""
        try:
            size, before = path.stat().st_size, self._untold.get(path, 0)
            if not size or (before and size < 2 * before and size - before < LOOKED_AGAIN):
                return None
            kind = kind_of(path)
        except OSError:
            return None
        if kind is None:
            self._untold[path] = size
            if "stderr" in path.name or path.suffix == ".err":
                return MESSAGES
        return kind

    def _take(self, told: dict[Path, FileKind]) -> None:
        groups: dict[tuple[str, str], list[Path]] = defaultdict(list)
        for path, kind in told.items():
            shape = "" if path in self._paths else _DIGITS.sub("#", path.as_posix())
            groups[kind.name, shape].append(path)
        stating = {group: paths for group, paths in groups.items() if told[paths[0]].order is not None}
        if stating and self._main is None:
            self._main = min(stating, key=lambda group: _preference(stating[group], told))
            self._tracker.start(tool=told[stating[self._main][0]].tool)
        # Telemetry has all that the logs of its run have, but for their words.
        words_wanted = self._main is not None and self._main[0] == TELEMETRY_NAME
        for group, paths in groups.items():
            for path in sorted(paths, key=_written_at):
                kind = told[path]
                self._seen.add(path)
                if kind.order is None or group == self._main:
                    self._add(path, kind)
                elif kind.order == TEXT_LOG and words_wanted:
                    self._add(path, MESSAGES)
                else:
                    self._left.append(f"{path}: {kind.name}, not read beside the others")

    def _add(self, path: Path, kind: FileKind) -> None:
        rank = rank_in(path)
        states_steps = kind.order is not None
        tracker = self._tracker
        if not states_steps:
            tracker = StepTracker(speaks=False)
            tracker.jobs = self._tracker.jobs
        stream: object = (rank, "steps") if states_steps else path
        source: FileSource | TrainerState
        if kind.is_state:
            source = TrainerState(path, tracker)
        else:

            def make() -> Reader:
                tracker.begin_file()
                return kind.make(tracker, rank)

            source = FileSource(path, kind.name, make, self._is_live)
        self._streams.setdefault(stream, []).append(source)
        if len(self._streams) > MANY:
            for sources in self._streams.values():
                for each in sources:
                    each.block = SMALL_BLOCK


def in_time(streams: Iterable[Iterable[Event]]) -> Iterator[Event]:
    """Return events of several streams in the order of time; those before a stream's first time come first."""
    return (event for _, event in merge(*map(_dated, streams), key=lambda dated: dated[0]))


def _dated(events: Iterable[Event]) -> Iterator[tuple[float, Event]]:
    latest = -inf
    for event in events:
        if event.at is not None and event.at > latest:
            latest = event.at
        yield latest, event


def _preference(paths: list[Path], told: dict[Path, FileKind]) -> tuple[int, int]:
    order = told[paths[0]].order
    return (0 if order is None else order), -sum(_written_at(path)[2] for path in paths)


def _written_at(path: Path) -> tuple[float, str, int]:
    """Return when a file was written last, its name, and its size."""
    try:
        state = path.stat()
    except OSError:
        return 0.0, path.as_posix(), 0
    return state.st_mtime, path.as_posix(), state.st_size


def _below(folder: Path) -> Iterator[Path]:
    """Return the files of a run's folder that may be logs, each rotated log once."""
    count, folders = 0, [(folder, 0)]
    while folders:
        inside, depth = folders.pop()
        try:
            entries = sorted(inside.iterdir())
        except OSError:
            continue
        for path in entries:
            count += 1
            if count > MOST_FILES:
                return
            if path.name.startswith(".") or (path.is_symlink() and path.is_dir()):
                continue
            if path.is_dir():
                if depth < DEEPEST:
                    folders.append((path, depth + 1))
            elif _may_be_a_log(path):
                yield path


def _may_be_a_log(path: Path) -> bool:
    is_log = path.name == "trainer_state.json" or _LOG.search(path.name) is not None
    return is_log and path.is_file() and not is_rotated(path)


def _refuse(path: Path) -> None:
    """Refuse a file that will not be told by what comes; a log that has just begun is waited for.

    Raises:
        ConfigError: it is no text, or has lines of steps in no known format.
    """
    try:
        state = path.stat()
        if not state.st_size:
            return
        with path.open("rb"):
            pass
        found = like_a_step(path) if is_text(path) else "binary data"
        headless = found is None and is_headless(path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    if headless:
        raise ConfigError(
            f"{path} has readings of nvidia-smi without the names of its columns; leave out noheader of --format, or "
            "add a first line with the names of --query-gpu, separated by commas"
        )
    if found == "binary data":
        raise ConfigError(f"{path} is binary data of no known format; known: {known_names()}")
    if found is not None:
        raise ConfigError(
            f"{path} is of no known log format; its lines look like « {found} ». Give --pattern with {HELP}. "
            f"Known: {known_names()}"
        )
    if time.time() - state.st_mtime > STALE_S:
        raise ConfigError(
            f"{path} has no line that states a step, and was last written {time.time() - state.st_mtime:,.0f} s ago. "
            f"Give --pattern with {HELP}. Known: {known_names()}"
        )


def open_run(paths: Iterable[Path], pattern: str | None, is_live: bool) -> list[Run]:
    """Return the sources of a run's files and folders."""
    named = [Path(path) for path in paths]
    return [Run(named, pattern, is_live)] if named else []
