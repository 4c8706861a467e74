"""Spans of a step, predicted or measured: rank, stream, start and end of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
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
        depth: how many spans of its stream enclose it, of which it is a part.
    """

    name: str
    rank: int
    stream: str
    start_us: float
    end_us: float
    after: tuple[int, ...] = ()
    category: str = ""
    details: Mapping[str, object] = NO_DETAILS
    depth: int = 0

    @property
    def duration_us(self) -> float:
        """Return how long it ran."""
        return self.end_us - self.start_us


def parts_of(span: Span, parts: Sequence[tuple[str, float]]) -> list[Span]:
    """Return what a span is made of, given as (name, duration) one after the other; some of it may stay unnamed."""
    edges = list(accumulate((us for _, us in parts), initial=span.start_us))
    assert edges[-1] <= span.end_us + 1e-6 * span.duration_us + 1e-3, "parts are longer than their span"
    edges = [min(edge, span.end_us) for edge in edges]
    return [
        Span(name, span.rank, span.stream, start, end, (), span.category, depth=span.depth + 1)
        for (name, us), start, end in zip(parts, edges, edges[1:], strict=False)
        if us > 0.0
    ]
