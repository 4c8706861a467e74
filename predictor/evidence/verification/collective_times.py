"""Time that collectives take to move their bytes: without waiting for the ranks that come later.

A rank that comes first waits inside the collective for the others, and which rank that is changes from call to call. So
of every call the shortest time among the ranks counts. The calls of a record are those of its one profiled step.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple, get_args

from predictor.replay.files.measured_step import COLLECTIVE, MeasuredSteps, PassName

PASSES: dict[str, PassName] = {name: name for name in get_args(PassName)}


class Key(NamedTuple):
    """What measured and predicted calls are matched by."""

    step_pass: PassName
    name: str
    part: str


def _calls(record: MeasuredSteps) -> dict[Key, list[float]]:
    """Return the durations of a rank's collectives in the order of its calls, in microseconds."""
    calls: dict[Key, list[float]] = {}
    for span in sorted(record.profiled_spans, key=lambda span: span.start_us):
        step_pass = PASSES.get(str(span.details.get("pass")))
        if span.category == COLLECTIVE and step_pass is not None:
            key = Key(step_pass, span.name, str(span.details.get("part", "")))
            calls.setdefault(key, []).append(span.duration_us)
    return calls


def transfer_us(ranks: Sequence[MeasuredSteps], key: Key) -> float:
    """Return what all calls of a collective in one step take, in microseconds.

    Where the ranks' records do not show the same calls, it is the shortest of the ranks' sums, the median of its steps.

    Args:
        ranks: of one stage in one launch; at least one has recorded the collective.
        key: of the collective.
    """
    calls = [_calls(rank).get(key, []) for rank in ranks]
    if calls[0] and len({len(durations) for durations in calls}) == 1:
        return float(sum(min(durations) for durations in zip(*calls, strict=True)))
    return min(
        median(operator.samples_us)
        for rank in ranks
        for operator in rank.provenance.operators
        if (operator.step_pass, operator.name, operator.part) == key
    )
