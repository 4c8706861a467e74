"""Real traces with events missing, shifted, longer or on another row: what is left replays as it was measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random

import pytest

from predictor.replay.files.events import RankTrace, TraceEvent
from predictor.replay.files.flows import arrows_of
from predictor.replay.files.kineto import read_trace
from predictor.replay.graph.build_graph import local_graph
from predictor.replay.graph.local_replay import replay_local
from tests.conftest import ROOT, SHARED

TRACES = (
    ROOT / "docs" / "traces" / "mlp-rank-0.json.gz",
    SHARED / "traces" / "hta_alexnet.json.gz",
    SHARED / "traces" / "hta_mi250_minitoy_train.json.gz",
    SHARED / "traces" / "hta_event_sync_multi_stream.json.gz",
)
Damage = Callable[[Random, RankTrace], list[TraceEvent]]


@cache
def read(path: Path) -> RankTrace:
    return read_trace(path)


def missing(random: Random, trace: RankTrace) -> list[TraceEvent]:
    return [event for event in trace.events if random.random() < 0.7]


def longer(random: Random, trace: RankTrace) -> list[TraceEvent]:
    return [event._replace(end_us=event.end_us + random.choice([0, 0, 50]) * random.random()) for event in trace.events]


def shifted(random: Random, trace: RankTrace) -> list[TraceEvent]:
    events = []
    for event in trace.events:
        start = max(0.0, event.start_us + random.choice([0, 0, random.uniform(-30, 30)]))
        lasts = (event.end_us - event.start_us) * random.choice([0, 1, 1])
        events.append(event._replace(start_us=start, end_us=start + lasts))
    return events


def untied(random: Random, trace: RankTrace) -> list[TraceEvent]:
    rows = range(len(trace.rows))
    like = {row: [other for other in rows if trace.rows[other].is_gpu == trace.rows[row].is_gpu] for row in rows}
    return [
        event._replace(
            correlation=random.choice([event.correlation, -1]), row=random.choice([event.row] * 20 + like[event.row])
        )
        for event in trace.events
    ]


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.name)
@pytest.mark.parametrize("damage", [missing, longer, shifted, untied])
def test_damaged_trace_replays_as_measured(path: Path, damage: Damage) -> None:
    if not path.is_file():
        pytest.skip(f"no trace {path}")
    whole = read(path)
    for seed in range(4):
        events: Sequence[TraceEvent] = sorted(
            damage(Random(seed), whole), key=lambda event: (event.start_us, -event.end_us)
        )
        local = local_graph(replace(whole, events=events, arrows=arrows_of(events, whole.rows, (), 0.0)))
        replay = replay_local(local)
        assert replay.makespan_us == pytest.approx(local.step_us, abs=1e-3)
        for span, task in zip(replay.spans, local.tasks, strict=True):
            assert span.start_us == pytest.approx(task.start_us, abs=1e-3)
