"""The fast replay of a pipeline is the replay of its dependency graph."""

from __future__ import annotations

import math

from hypothesis import given, settings

from predictor.timeline.graph import graph_tasks, replay_graph
from predictor.timeline.pipeline import Stream, pipeline_tasks
from predictor.timeline.schedules import SCHEDULES
from tests.property.test_schedules import SAME, Case, cases


@settings(max_examples=300)
@given(cases())
def test_a_pipelines_replay_is_that_of_its_graph(case: Case) -> None:
    found = case.replayed()
    name, stages, micro_batches, chunks, blocking = case.sizes
    graph = replay_graph(pipeline_tasks(SCHEDULES[name], micro_batches, *case[1:], blocking))
    finished = [0.0] * stages
    for span in graph.spans:
        if blocking or span.stream == Stream.COMPUTE:
            finished[span.rank] = max(finished[span.rank], span.end_us)
    assert len(graph.spans) == micro_batches * chunks * len(SCHEDULES[name].passes) * stages + 4 * micro_batches * (
        stages * chunks - 1
    )
    for one, other in zip(finished, found.finished, strict=True):
        assert math.isclose(one, other, rel_tol=SAME)
    for stage, busy in enumerate(found.busy):
        idle = graph.idle_us[stage, Stream.COMPUTE]
        assert math.isclose(graph.makespan_us - idle, busy, rel_tol=SAME, abs_tol=SAME * (1 + graph.makespan_us))


@given(cases())
def test_spans_of_a_pipeline_replay_to_themselves(case: Case) -> None:
    name, _, micro_batches, _, blocking = case.sizes
    spans = replay_graph(pipeline_tasks(SCHEDULES[name], micro_batches, *case[1:], blocking)).spans
    again = replay_graph(graph_tasks(spans, links=(Stream.SEND, Stream.RECEIVE))).spans
    for one, other in zip(spans, again, strict=True):
        assert math.isclose(one.end_us, other.end_us, rel_tol=SAME, abs_tol=SAME)
