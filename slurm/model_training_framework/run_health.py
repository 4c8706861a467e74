"""Health of an experiment's run beside its prediction, from the beginning and the end of what its trainer writes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from predictor.watch.events import Event
from predictor.watch.health import Expected, Health
from predictor.watch.monitor import Monitor
from predictor.watch.readers.records import JsonLines
from predictor.watch.readers.tracker import StepTracker
from predictor.watch.sources.opening import in_time

STEPS = "steps.jsonl"
TELEMETRY = "health"  # folder of a file per rank
RANK = re.compile(r"rank-(\d+)\.jsonl")
MOST_RANKS = 8
HEAD_BYTES, TAIL_BYTES = 1 << 15, 1 << 17  # of a file: the first healthy steps, and how it goes now


def health_of(folder: Path, predicted: Mapping[str, Any] | None, now: float | None) -> Health | None:
    """Return the health of the run in an experiment's folder; None where no trainer has written a step.

    Args:
        folder: of the experiment.
        predicted: what its record says was predicted.
        now: seconds since the epoch, which tells a stalled run; None of a run that has ended.
    """
    monitor = Monitor(None if predicted is None else _expected(predicted))
    files = [path for path in (folder / TELEMETRY).glob("rank-*.jsonl") if RANK.fullmatch(path.name)]
    files = sorted(files)[:MOST_RANKS] or [folder / STEPS]
    tracker = StepTracker()
    for event in in_time(_events(path, tracker) for path in files):
        monitor.take(event)
    health = monitor.health(now)
    return None if health.last_step is None else health


def _expected(predicted: Mapping[str, Any]) -> Expected | None:
    """Return the step that a record of ``ExperimentPrediction`` predicts; None of a record without one."""
    times = [predicted.get(name) for name in ("step_s", "low_step_s", "high_step_s")]
    step_s, low_s, high_s = (time if isinstance(time, int | float) else 0.0 for time in times)
    if not 0.0 < low_s <= step_s <= high_s:
        return None
    rates = [predicted.get(name) for name in ("tokens_per_second", "samples_per_second")]
    tokens, samples = (rate * step_s if isinstance(rate, int | float) else None for rate in rates)
    return Expected(step_s, low_s, high_s, tokens=tokens, samples=samples, source=str(predicted.get("system", "")))


def _events(path: Path, tracker: StepTracker) -> Iterator[Event]:
    """Return the events of a file's beginning and end; none where it cannot be read."""
    rank = RANK.fullmatch(path.name)
    reader = JsonLines(tracker, None if rank is None else int(rank[1]))
    try:
        with path.open("rb") as stream:
            yield from reader.feed(stream.read(HEAD_BYTES))
            size = stream.seek(0, 2)
            rest = max(HEAD_BYTES, size - TAIL_BYTES)
            if rest > HEAD_BYTES:
                yield from reader.feed(b"\n")  # the line that the beginning ends in is cut
            stream.seek(min(rest, size))
            tail = stream.read(TAIL_BYTES)
    except OSError:
        return
    yield from reader.feed(tail if rest == HEAD_BYTES else tail.partition(b"\n")[2])
    yield from reader.finish()
