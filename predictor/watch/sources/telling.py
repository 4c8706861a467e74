"""What a file is: the format of a log, a table, records, an event file."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from predictor.watch.readers.devices import Accounting, Dmon, HostFile, nvidia_smi
from predictor.watch.readers.log_format import LogFormat
from predictor.watch.readers.log_reader import LogReader
from predictor.watch.readers.names import PER_SECOND
from predictor.watch.readers.records import MEANINGS, JsonLines, metric_rows
from predictor.watch.readers.table import TABLE, Teller
from predictor.watch.readers.tracker import StepTracker
from predictor.watch.sources.event_files import EventFile, WandbLog
from predictor.watch.sources.growing_file import GrowingFile
from predictor.watch.sources.text_source import Reader

LOOKED_AT = 1 << 26  # bytes in which a format must show itself
HEAD = 1 << 16
_RANK_IN_PATH = re.compile(
    r"(?:^|[^a-z])(?:global_?)?rank[_-]?0*(\d{1,6})(?=\D|$)|attempt_\d+/(\d{1,6})/std(?:out|err)\.log$"
)
_EVENT_HOST = re.compile(r"tfevents\.(\d{9,11})\.([\w.-]+?)(?:\.\d+\.\d+)?(?:\.v2)?$")
_HOST_FILE = re.compile(r"(?:host|machine|node)_?(?:file|list|s)(?:\.txt|\.\d+)?")
_COLUMN = re.compile(r"[\w ./%()\[\]#-]{0,80}")
_STEP_WORDS = re.compile(rb"(?i)\b(?:step|iter|iteration|epoch|batch|it/s|s/it|loss)\b")
_DIGITS = re.compile(rb"[-+]?\d[\d.,]*(?:e[-+]?\d+)?")
# A row of nvidia-smi --query-gpu: its time stamp, or units behind numbers.
_READING = re.compile(rb"\d{4}/\d\d/\d\d \d\d:\d\d:\d\d(?:\.\d+)?, |[^,]*, *\d+(?:\.\d+)? (?:MHz|W|MiB|%)(?:,|$)")
RECURS = 5  # lines of one shape, from which on a file of no known format has lines of steps


@dataclass(frozen=True, slots=True)
class FileKind:
    """What a file is, and what reads it.

    Attributes:
        name: of the format.
        make: a reader, from the tracker of the run and the rank that the path names.
        order: among the files of one run that state its steps, the least is read; None: a side file, always read.
        is_state: the file is written anew each time.
    """

    name: str
    make: Callable[[StepTracker, int | None], Reader]
    order: int | None = None
    is_state: bool = False
    tool: str = ""


TELEMETRY, STEP_RECORDS, TEXT_LOG, EVENT_FILE, WANDB, TABLE_OF_METRICS, TRAINER_STATE = range(7)
TELEMETRY_NAME = "telemetry of ranks"
_ONLY_MESSAGES = LogFormat("messages of a log", "", "", "", "", (), lambda: lambda line: None)
MESSAGES = FileKind(_ONLY_MESSAGES.name, lambda tracker, rank: LogReader(_ONLY_MESSAGES, tracker, rank))


def log_kind(known: LogFormat) -> FileKind:
    """Return the kind of a text log."""
    return FileKind(known.name, lambda tracker, rank: LogReader(known, tracker, rank), TEXT_LOG, tool=known.tool)


def rank_in(path: Path) -> int | None:
    """Return the rank that a path names.

    >>> rank_in(Path("health/rank-00003.jsonl")), rank_in(Path("train.log"))
    (3, None)
    """
    found = _RANK_IN_PATH.search("/".join(path.parts[-4:]).lower())
    return None if found is None else int(found[1] or found[2])


def kind_of(path: Path) -> FileKind | None:
    """Return what a file is; None of one without a known format, or that has too little in it yet."""
    name = path.name.removesuffix(".gz")
    if "tfevents" in name:
        host = _EVENT_HOST.search(name)
        return FileKind(
            "TensorBoard event file",
            lambda tracker, rank: EventFile(tracker, rank, host[2] if host else ""),
            EVENT_FILE,
        )
    if name.endswith(".wandb"):
        return FileKind("W&B offline run", WandbLog, WANDB)
    if name == "trainer_state.json":
        return FileKind("trainer_state.json", lambda tracker, rank: JsonLines(tracker), TRAINER_STATE, is_state=True)
    if _HOST_FILE.fullmatch(name):
        return FileKind("list of nodes", lambda tracker, rank: HostFile(tracker.jobs))
    head = b""
    for block in GrowingFile(path).blocks():
        head += block
        if len(head) >= HEAD:
            break
    text = head[:HEAD].replace(b"\0", b"").decode("utf-8", "replace").lstrip("\ufeff\ufffd \r\n")
    return _by_head(text) or _by_lines(path)


def _by_head(text: str) -> FileKind | None:
    """Return the kind of a file with a header, or of JSON lines."""
    first, _, _ = text.partition("\n")
    if first.startswith("{") and (record := _object(first)) is not None:
        if "event" in record:
            return FileKind(TELEMETRY_NAME, JsonLines, TELEMETRY)
        if record.keys() & {"step", "_step", "global_step", "current_steps", "iteration"}:
            meanings = {MEANINGS[key].name for key in record if key in MEANINGS}
            order = STEP_RECORDS if meanings & {"seconds", PER_SECOND} else TABLE_OF_METRICS
            return FileKind("records in JSON lines", JsonLines, order)
    if re.search(r"^#\s?Entity\s", text, re.MULTILINE):
        return FileKind("DCGM dmon", lambda tracker, rank: Dmon())
    if "|" in first and {"JobID", "State"} <= set(first.strip().split("|")):
        return FileKind("sacct", lambda tracker, rank: Accounting(tracker.jobs))
    columns = [column.strip() for column in first.split(",")]
    if len(columns) < 2 or not all(map(_COLUMN.fullmatch, columns)):
        return None
    named = {column.partition(" [")[0] for column in columns}
    if named & {"power.draw", "clocks.sm", "clocks.current.sm", "temperature.gpu", "utilization.gpu"}:
        return FileKind("nvidia-smi", lambda tracker, rank: nvidia_smi())
    if named & {"step", "iteration", "global_step", "iter"}:
        is_of_ranks = "rank" in named or any(re.fullmatch(r"rank[ _-]?\d+.*", column) for column in columns)
        return FileKind(
            "step times of ranks" if is_of_ranks else "table of metrics",
            lambda tracker, rank: metric_rows(tracker),
            None if is_of_ranks else TABLE_OF_METRICS,
        )
    return None


def _object(line: str) -> dict[str, object] | None:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _by_lines(path: Path) -> FileKind | None:
    """Return the format of the first lines that tell one; bars alone do only where nothing else comes."""
    teller, read, bars = Teller(), 0, False
    for block in GrowingFile(path).blocks():
        known = teller.feed(block)
        if known is not None and known is not TABLE[-1]:
            return log_kind(known)
        bars = bars or known is not None
        read += len(block)
        if read > LOOKED_AT:
            break
    known = teller.finish()
    return log_kind(known or TABLE[-1]) if known is not None or bars else None


def like_a_step(path: Path) -> str | None:
    """Return a line of the shape that recurs most in a file's beginning and has words of a step; None of none."""
    shapes: Counter[bytes] = Counter()
    example: dict[bytes, bytes] = {}
    for line in _lines(path):
        if _STEP_WORDS.search(line) and _DIGITS.search(line):
            shape = _DIGITS.sub(b"#", line)
            shapes[shape] += 1
            example.setdefault(shape, line)
    if not shapes:
        return None
    shape, count = shapes.most_common(1)[0]
    return example[shape].decode("utf-8", "replace").strip()[:160] if count >= RECURS else None


def _lines(path: Path) -> Iterator[bytes]:
    for block in GrowingFile(path).blocks():
        yield from (line[:400] for line in re.split(rb"[\r\n]+", block[:HEAD].replace(b"\0", b"")))
        return


def is_headless(path: Path) -> bool:
    """Return whether a file has readings of nvidia-smi without the names of their columns."""
    return any(_READING.match(line) for line in islice(_lines(path), 8))


def is_text(path: Path) -> bool:
    """Return whether a file's beginning is text, or empty."""
    for block in GrowingFile(path).blocks():
        head = block[:HEAD].replace(b"\0", b"")
        odd = sum(byte < 9 or 13 < byte < 27 for byte in head)
        return bool(head) and odd * 50 < len(head)
    return True


def known_names() -> str:
    """Return the names of all formats."""
    others = ("steps.jsonl", "trainer_state.json", "CSV", "TensorBoard", "W&B offline")
    return ", ".join([*dict.fromkeys(known.tool for known in TABLE if known.tool), *others])
