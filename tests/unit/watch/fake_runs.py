"""Runs with seeded times for tests of the monitor: events with a fault of a known cause."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence

from predictor.watch.events import BACKWARD, COMMUNICATION, DATA, FORWARD, OPTIMIZER, Event, Start, Step
from predictor.watch.health import Health
from predictor.watch.monitor import Monitor

PARTS: Mapping[str, float] = {FORWARD: 0.03, BACKWARD: 0.05, OPTIMIZER: 0.008, COMMUNICATION: 0.01, DATA: 0.002}


def times(count: int, seed: int = 0, step_s: float = 0.1, sigma: float = 0.02) -> list[float]:
    """Return independent lognormal step times."""
    draw = random.Random(seed)
    return [step_s * draw.lognormvariate(0, sigma) for _ in range(count)]


def watch(events: Iterator[Event] | Sequence[Event], now: float | None = None) -> Health:
    """Return the health after all events."""
    monitor = Monitor()
    for event in events:
        monitor.take(event)
    return monitor.health(now)


def steps(seconds: Sequence[float], first: int = 1) -> Iterator[Event]:
    """Return a run's steps without anything beside their times."""
    at = 1_000_000.0
    yield Start(at=at)
    for number, value in enumerate(seconds, first):
        at += value
        yield Step(number, value, at=at)


def ranks(
    count: int,
    extra: Callable[[int, int], Mapping[str, float]],
    num_ranks: int = 2,
    counters: Callable[[int, int], Mapping[str, float]] | None = None,
    seed: int = 0,
) -> Iterator[Event]:
    """Return steps of ranks: ``extra(number, rank)`` adds seconds to parts, the others wait in communication."""
    draw = random.Random(seed)
    yield Start(world_size=num_ranks)
    totals: list[dict[str, float]] = [{} for _ in range(num_ranks)]
    for number in range(1, count + 1):
        own = [
            {part: PARTS.get(part, 0.0) * draw.lognormvariate(0, 0.02) + extra(number, rank).get(part, 0.0)
             for part in (*PARTS, *(extra(number, rank).keys() - PARTS.keys()))}
            for rank in range(num_ranks)
        ]  # fmt: skip
        step_s = max(sum(parts.values()) for parts in own)
        for rank, parts in enumerate(own):
            parts[COMMUNICATION] += step_s - sum(parts.values())
            for name, value in (counters(number, rank) if counters is not None else {}).items():
                totals[rank][name] = totals[rank].get(name, 0.0) + value
            yield Step(number, step_s, rank=rank, parts=parts, counters=dict(totals[rank]))
