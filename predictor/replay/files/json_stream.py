"""Read the events of a trace file, .json or .json.gz, as a stream; of a damaged one its intact events.

A file is an object with the list ``traceEvents`` in it, or that list alone, whose « ] » may be missing ("Trace Event
Format", JSON array format). Events are decoded a few megabytes at a time, so that a large trace is never in memory as
text and as objects at once. A piece is cut where one event seems to end: if it decodes as a list by itself, the cut was
right, as a cut inside of a string or of a nested object leaves a bracket open. Otherwise the piece is decoded event by
event, which also finds the end of the list and the events that are no JSON.

Python's own decoder allows control characters, repeated keys and NaN, and with pieces it is fast enough: pydantic's
validation of any JSON took 1.8 times as long on a synthetic trace, its bare parser, no public part of it, 0.65 times.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from json import JSONDecodeError
from pathlib import Path

from predictor.replay.files import trace_bytes
from predictor.replay.files.record_model import RecordError

NEXT_EVENT = re.compile(r"\}\s*,\s*(?=\{)")
BETWEEN = re.compile(r"[\s,]*")
# The profiler prints C++'s infinities and NaN as they are, for example as the bandwidth of a copy of no duration.
NO_NUMBER = re.compile(r"([:\[,]\s*)[-+]?(?:inf(?:inity)?|nan(?:\(\w*\))?)(?=\s*[,\]}])", re.IGNORECASE)
# Differences of floats are exact to half a nanosecond below 2**42 µs, 51 days. Times count from a quarter of a year's
# beginning since baseTimeNanoseconds, and from 1970 before.
LONG_TIME = re.compile(rb'"ts"\s*:\s*(?:4[4-9]|[5-9]\d|\d{3,})\d{11}\.\d')
DIGITS_OF_FLOAT = 12


def _exact(text: str) -> float | Decimal:
    return Decimal(text) if text.find(".") > DIGITS_OF_FLOAT else float(text)


DECODER = json.JSONDecoder(strict=False)  # control characters are allowed in names
EXACT_DECODER = json.JSONDecoder(strict=False, parse_float=_exact)  # slower


class NotATraceError(RecordError):
    """A file that can be read and is no trace."""


Take = Callable[[Sequence[object]], None]


@dataclass(slots=True)
class TraceFile:
    """What a trace file says beside its events.

    Attributes:
        facts: the keys beside ``traceEvents``.
        notes: what is damaged.
        bad_events: events that are no JSON.
    """

    path: Path
    facts: dict[str, object] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    bad_events: int = 0


def stream_events(path: Path, take: Take, list_key: str = "traceEvents") -> TraceFile:
    """Hand over the events of a trace file, some thousands at a time, and return what else is in it.

    Args:
        path: of the file.
        take: is given the events.
        list_key: of the list, where it is in an object.

    Raises:
        RecordError: it cannot be read, or is no trace (NotATraceError).
    """
    file = TraceFile(path)
    try:
        with path.open("rb") as stream:
            _stream(file, trace_bytes.pieces(stream, file.notes), take, list_key)
    except OSError as error:
        reason = "it is a folder" if path.is_dir() else error.strerror
        raise RecordError(f"{path} cannot be read as a trace: {reason}") from None
    if file.bad_events:
        file.notes.append(f"{file.bad_events} events are no JSON; left out")
    return file


class _Text:
    """What is read and not decoded yet."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self.pieces = pieces
        self.rest = b""
        self.is_whole = False
        self.decoder = DECODER

    def more(self) -> bool:
        """Read on; return whether there was something."""
        wanted = len(self.rest) + trace_bytes.PIECE_BYTES
        read = [self.rest]
        size = len(self.rest)
        while size < wanted:
            piece = next(self.pieces, None)
            if piece is None:
                self.is_whole = True
                break
            read.append(piece)
            size += len(piece)
        grown = size > len(self.rest)
        self.rest = b"".join(read)
        return grown


def _stream(file: TraceFile, pieces: Iterator[bytes], take: Take, list_key: str) -> None:
    text = _Text(pieces)
    is_object = _enter_list(file, text, list_key)
    if LONG_TIME.search(text.rest):
        text.decoder = EXACT_DECODER
    ended = False
    while not ended:
        grown = text.more()
        if not text.is_whole and (cut := _last_cut(text.rest)):
            try:
                events = text.decoder.decode(f"[{text.rest[:cut].decode()}]")
                text.rest = text.rest[cut + 1 :]
            except (ValueError, RecursionError):
                events, text.rest, ended = _decode_each(file, text)
        else:
            events, text.rest, ended = _decode_each(file, text)
        take(events)
        if text.is_whole and not grown and not ended:
            break
    if not ended:
        if is_object or text.rest.strip(b" \t\r\n,"):
            file.notes.append("the file is torn; it ends within its events")
    elif is_object:
        while text.more():
            pass
        _read_facts(file, b"{" + text.rest.lstrip(b" \t\r\n,"), "after")


def _enter_list(file: TraceFile, text: _Text, list_key: str) -> bool:
    """Read up to the first event; return whether the list of events is in an object.

    Raises:
        NotATraceError: there is no list of events.
    """
    list_begins = re.compile(rb'"%s"\s*:\s*\[' % list_key.encode())
    searched = 0
    while text.more():
        start = text.rest.lstrip()
        if start[:1] == b"[":
            text.rest = start[1:]
            return False
        if start[:1] not in (b"{", b""):
            raise NotATraceError(f"{file.path} is no trace: it begins with {_shown(start)}; expected JSON")
        begin = list_begins.search(text.rest, searched)
        if begin:
            head = text.rest[: begin.start()].strip()
            text.rest = text.rest[begin.end() :]
            _read_facts(file, head.removesuffix(b",") + b"}", "before")
            return True
        searched = max(0, len(text.rest) - 64)
    if b'"nodes"' in text.rest[:4096]:
        raise NotATraceError(f"{file.path} is no trace of the profiler but an execution trace, which has no times")
    notes = f" ({'; '.join(file.notes)})" if file.notes else ""
    lacks = f"it has no list {list_key}" if text.rest.strip() else "it is empty"
    raise NotATraceError(f"{file.path} is no trace: {lacks}{notes}")


def _shown(content: bytes) -> str:
    first = content[:24].splitlines()[0] if content[:24].splitlines() else b""
    return repr(first.decode("utf-8", "replace"))


def _without_infinities(text: str) -> str:
    """Return JSON with an empty string, as long, where C++ printed an infinity or NaN."""
    return NO_NUMBER.sub(lambda match: match[1] + '""'.ljust(len(match[0]) - len(match[1])), text)


def _read_facts(file: TraceFile, content: bytes, where: str) -> None:
    """Read the keys before or after the events."""
    text = content.decode("utf-8", "replace")
    for attempt in (text, _without_infinities(text)):
        try:
            facts, _ = DECODER.raw_decode(attempt)
        except (ValueError, RecursionError):
            continue
        file.facts |= facts
        return
    file.notes.append(f"what stands {where} the events is damaged or torn")


def _last_cut(content: bytes) -> int:
    """Return the position behind the last event that seems whole, where a comma stands; 0: none."""
    end = len(content)
    while (brace := content.rfind(b"},", 0, end)) > 0:
        if content[brace + 2 : brace + 64].lstrip()[:1] == b"{":
            return brace + 1
        end = brace + 1
    return 0


def _decode_each(file: TraceFile, text: _Text) -> tuple[list[object], bytes, bool]:
    """Return the events that are whole, what is left, and whether the list has ended."""
    close = 1 + max(text.rest.rfind(b"}"), text.rest.rfind(b"]"))  # not within a character of several bytes
    content, beyond = text.rest[:close].decode("utf-8", "replace"), text.rest[close:]
    events: list[object] = []
    at = 0
    while True:
        match = BETWEEN.match(content, at)
        at = match.end() if match else at
        if content[at : at + 1] == "]":
            return events, content[at + 1 :].encode() + beyond, True
        if at == len(content):
            return events, beyond, False
        try:
            event, at = text.decoder.raw_decode(content, at)
        except (ValueError, RecursionError) as error:
            event, after = _mended(text, content, at, error)
            if after == at:
                return events, content[at:].encode() + beyond, False
            at = after
            if event is None:
                file.bad_events += 1
                continue
        events.append(event)


def _mended(text: _Text, content: str, at: int, error: ValueError | RecursionError) -> tuple[object, int]:
    """Return an event that does not decode, without its infinities, and where it ends.

    The event is None where it is damaged otherwise. It ends where it begins if its end was not read yet, or is torn.
    """
    error_at = error.pos if isinstance(error, JSONDecodeError) else at
    if not text.is_whole and (str(error).startswith("Unterminated string") or error_at >= len(content.rstrip()) - 8):
        return None, at
    boundary = NEXT_EVENT.search(content, error_at)
    end = boundary.start() + 1 if boundary else len(content)
    try:
        event, used = text.decoder.raw_decode(_without_infinities(content[at:end]))
    except (ValueError, RecursionError):
        return None, boundary.end() if boundary else at
    return event, at + used
