"""A format of the user's own: lines that a pattern with named groups matches."""

from __future__ import annotations

import re
from collections.abc import Mapping

from predictor.core.base.errors import ConfigError, nearest
from predictor.watch.readers.log_format import GROUPS, NOT_VALUES, Extract, LogFormat, Values, groups
from predictor.watch.readers.names import AT, RANK, number
from predictor.watch.readers.prefix import Clock

HELP = f"named groups: step (needed), {', '.join(name for name in GROUPS if name != 'step')}, time (a date and a time)"


def pattern_format(pattern: str) -> LogFormat:
    """Return the format of lines that a pattern matches.

    Raises:
        ConfigError: it is no pattern, has no group ``step``, or a group of another name.
    """
    try:
        names = re.compile(pattern).groupindex
        re.compile(pattern.encode())
    except (re.error, RecursionError, OverflowError) as error:
        raise ConfigError(f"--pattern {pattern!r} is no regular expression: {error}") from None
    if unknown := [name for name in names if name not in GROUPS and name not in NOT_VALUES]:
        raise ConfigError(f"--pattern has a group {unknown[0]};{nearest(unknown[0], GROUPS)} {HELP}")
    if "step" not in names:
        raise ConfigError(rf"--pattern {pattern!r} has no group step, such as step (?P<step>\d+); {HELP}")
    return LogFormat("--pattern", "", "", "", "", ("",), lambda: _extract(pattern, names))


def _extract(pattern: str, names: Mapping[str, int]) -> Extract:
    read, compiled, clock = groups(pattern), re.compile(pattern.encode()), Clock()

    def extract(line: bytes) -> Values | None:
        values = read(line)
        if values is None or not names.keys() & NOT_VALUES:
            return values
        found = compiled.search(line)
        stated = found.groupdict() if found is not None else {}
        at = clock.at(stated.get("time") or b"") or number(stated.get("time") or b"")
        rank = number(stated.get("rank") or b"")
        return values | ({AT: at} if at is not None else {}) | ({RANK: rank} if rank is not None else {})

    return extract
