"""A step, predicted or measured, is a list of spans: what ran, on which rank and stream, from when to when."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

NO_DETAILS: Mapping[str, object] = MappingProxyType({})


class Span(NamedTuple):
    """Something that ran on one stream of one rank; times in microseconds from the start of the step or trace.

    Attributes:
        rank: process that ran it; of a predicted step its pipeline stage, as all ranks of a stage are alike.
        stream: within the rank; spans of one stream follow or enclose one another unless the stream is a link, on
            which messages may overlap.
        after: positions, in the same list, of the spans that it waited for beside its stream; empty where unknown.
        category: kind of work, as the Trace Event Format's ``cat``.
        details: what else is known, as its ``args``.
    """

    name: str
    rank: int
    stream: str
    start_us: float
    end_us: float
    after: tuple[int, ...] = ()
    category: str = ""
    details: Mapping[str, object] = NO_DETAILS

    @property
    def duration_us(self) -> float:
        """Return how long it ran."""
        return self.end_us - self.start_us
