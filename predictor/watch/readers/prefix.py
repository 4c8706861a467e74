"""Beginnings of log lines: ranks that launchers write, time stamps, colours."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone

COLOUR = re.compile(rb"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|[@-Z\\-_])")
LOOKED_AT = 160  # bytes, within which a line's prefix ends
# srun --label, torchrun --tee and accelerate; DeepSpeed and Megatron-LM.
_LABEL = re.compile(rb"\s*(?:(\d{1,6}): ?(?=\D|$)|\[[a-z]{1,20}(\d{1,6})\]:)")
_RANK = re.compile(rb"\[Rank (\d{1,6})\]|\[RANK(\d{1,6})\]")
_TIME = re.compile(rb"(\d{4}-\d\d-\d\d)[ T_](\d\d:\d\d):(\d\d(?:[.,]\d{1,9})?)\s?(Z|[+-]\d\d:?\d\d)?")


class Clock:
    """Reads time stamps; times without a zone are this machine's."""

    def __init__(self) -> None:
        """Remember no minute yet."""
        self._minute: tuple[bytes, bytes, bytes | None] | None = None
        self._seconds = 0.0
        self._place = 0  # where the last line had its time

    def at(self, line: bytes) -> float | None:
        """Return the first time stamp of a line's beginning, in seconds since the epoch."""
        found = _TIME.match(line, self._place) or _TIME.search(line, 0, LOOKED_AT)
        if found is None:
            return None
        self._place = found.start()
        day, minute, second, zone = found.groups()
        if (day, minute, zone) != self._minute:
            try:
                moment = datetime.fromisoformat(f"{day.decode()} {minute.decode()}")
                self._seconds = moment.replace(tzinfo=_zone(zone)).timestamp()
            except (ValueError, OverflowError, OSError):
                return None
            self._minute = (day, minute, zone)
        return self._seconds + float(second.replace(b",", b"."))


def _zone(text: bytes | None) -> timezone | None:
    """Return a zone; None: this machine's.

    Raises:
        ValueError: it is none.
    """
    if not text:
        return None
    if text == b"Z":
        return UTC
    digits = text.replace(b":", b"")
    offset = timedelta(hours=int(digits[1:3]), minutes=int(digits[3:5]))
    return timezone(-offset if digits[:1] == b"-" else offset)


def rank(line: bytes) -> int | None:
    """Return the rank that a launcher or a framework wrote before a line."""
    found = _LABEL.match(line)
    if found is None and b"[R" in line[:LOOKED_AT]:
        found = _RANK.search(line, 0, LOOKED_AT)
    return None if found is None else int(found[1] or found[2])
