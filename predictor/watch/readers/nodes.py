"""Names of nodes, as Slurm and hostfiles write them."""

from __future__ import annotations

import re
from collections.abc import Iterator

MOST_NODES = 1 << 16
_ONE = re.compile(r"([\w.-]*)(?:\[([\d,-]+)\])?([\w.-]*)")
_SPLIT = re.compile(r",(?![^\[]*\])")


def nodes(text: str) -> tuple[str, ...]:
    """Return the nodes of a list in Slurm's form.

    >>> nodes("a[01-03,7],login-1")
    ('a01', 'a02', 'a03', 'a7', 'login-1')
    """
    found: list[str] = []
    for part in _SPLIT.split(text.strip()):
        named = _ONE.fullmatch(part)
        if named is None or not part:
            continue
        before, ranges, after = named.groups()
        for number in _numbers(ranges) if ranges else ("",):
            if len(found) == MOST_NODES:
                return tuple(found)
            found.append(f"{before}{number}{after}")
    return tuple(found)


def _numbers(ranges: str) -> Iterator[str]:
    for each in ranges.split(","):
        first, _, last = each.partition("-")
        if first.isdigit() and (last or first).isdigit() and max(len(first), len(last)) < 10:
            for number in range(int(first), int(last or first) + 1):
                yield f"{number:0{len(first)}d}"


def host_file(text: str) -> tuple[str, ...]:
    """Return the nodes of a file with a node a line, and ``slots=8`` or ``:8`` behind it."""
    lines = (line.partition("#")[0].split() for line in text.splitlines())
    return tuple(dict.fromkeys(words[0].partition(":")[0] for words in lines if words))[:MOST_NODES]
