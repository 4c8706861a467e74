"""The fast special cases of a step, replay, overlap and end, are the replay of its dependency graph."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from predictor.core.step.overlap import left_over
from predictor.core.timeline.graph import GraphTask, replay_graph
from predictor.core.timeline.pipeline import Stream, pipeline_tasks
from predictor.core.timeline.schedules import SCHEDULES
from predictor.core.timeline.spans import Span
from predictor.core.timeline.step_end import StageEnd, end_of_step, ending_tasks
from tests.property.test_schedules import DURATION, SAME, Case, cases, hops


def _task_of(span: Span) -> GraphTask:
    """Return a span as the task of a graph; a link carries several messages at once."""
    is_exclusive = span.stream not in (Stream.SEND, Stream.RECEIVE)
    return GraphTask(
        span.name, span.rank, span.stream, span.end_us - span.start_us, span.after, is_exclusive=is_exclusive
    )


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
    slots = micro_batches * chunks * len(SCHEDULES[name].passes) * stages
    assert len(graph.spans) == slots + 4 * micro_batches * hops(case.sizes)
    for one, other in zip(finished, found.finished, strict=True):
        assert math.isclose(one, other, rel_tol=SAME)
    for stage, busy in enumerate(found.busy):
        idle = graph.idle_us[stage, Stream.COMPUTE]
        assert math.isclose(graph.makespan_us - idle, busy, rel_tol=SAME, abs_tol=SAME * (1 + graph.makespan_us))


@given(cases())
def test_spans_of_a_pipeline_replay_to_themselves(case: Case) -> None:
    name, _, micro_batches, _, blocking = case.sizes
    spans = replay_graph(pipeline_tasks(SCHEDULES[name], micro_batches, *case[1:], blocking)).spans
    again = replay_graph(list(map(_task_of, spans))).spans
    for one, other in zip(spans, again, strict=True):
        assert math.isclose(one.end_us, other.end_us, rel_tol=SAME, abs_tol=SAME)


@st.composite
def stage_ends(draw: st.DrawFn, case: Case) -> list[StageEnd]:
    """Draw the ends of all stages; first and last stage share an embedding or do not."""
    tied = draw(DURATION)
    ends = []
    for stage in range(case.sizes.stages):
        reduction, optimizer, gather = draw(DURATION), draw(DURATION), draw(DURATION)
        buckets = draw(st.integers(1, 5000))
        window = sum(sum(kind[stage]) for kind in (case.backward, case.weight) if kind)
        exposed_gather = left_over(gather, sum(case.forward[stage]), draw(st.integers(1, 9)))
        ends.append(
            StageEnd(
                reduction=reduction,
                buckets=buckets,
                hidden=reduction - left_over(reduction, window, buckets),
                tied=tied if stage in (0, case.sizes.stages - 1) else 0.0,
                optimizer=optimizer,
                gather=exposed_gather,
                hidden_gather=gather - exposed_gather,
            )
        )
    return ends


@settings(max_examples=300)
@given(cases(), st.data())
def test_the_end_of_a_step_is_that_of_its_graph(case: Case, data: st.DataObject) -> None:
    name, _, micro_batches, _, blocking = case.sizes
    ends = data.draw(stage_ends(case))
    tasks = pipeline_tasks(SCHEDULES[name], micro_batches, *case[1:], blocking)
    ending = ending_tasks(tasks, ends, blocking)
    exposed = [end.reduction - end.hidden + end.tied for end in ends]
    closing = max(end.optimizer + end.gather for end in ends)
    closed = end_of_step(case.replayed().finished, exposed, closing)
    graph = replay_graph(tasks + ending)
    assert math.isclose(graph.makespan_us, closed.step, rel_tol=SAME, abs_tol=SAME)
    updating = [span.start_us for span in graph.spans if span.stream == Stream.OPTIMIZER]
    assert all(math.isclose(start, closed.updating, rel_tol=SAME, abs_tol=SAME) for start in updating)
    for span, end in zip(graph.spans[len(tasks) :], ending, strict=True):
        assert span.name == "parameter gather, hidden" or span.after, end


@given(DURATION, DURATION, DURATION, st.integers(1, 200))
def test_two_tasks_stand_for_any_number_of_buckets(
    forward: float, window: float, reduction: float, buckets: int
) -> None:
    """A window in as many parts as there are buckets: each bucket waits for its part and for the bucket before."""
    graph = [GraphTask("forward", 0, Stream.COMPUTE, forward)]
    graph += [GraphTask("backward", 0, Stream.COMPUTE, window / buckets) for _ in range(buckets)]
    graph += [GraphTask("bucket", 0, Stream.REDUCTION, reduction / buckets, (1 + i,)) for i in range(buckets)]
    ended = replay_graph(graph).makespan_us
    assert math.isclose(ended, forward + window + left_over(reduction, window, buckets), rel_tol=SAME, abs_tol=SAME)
    pipeline = pipeline_tasks(SCHEDULES["1f1b"], 1, [[forward]], [[window]], [], 0.0)
    unused = 0.0  # the closed form's hidden part: the window is contiguous
    ending = ending_tasks(pipeline, [StageEnd(reduction, buckets, unused, 0.0, 0.0, 0.0, 0.0)], blocking=True)
    assert len(ending) <= 2
    assert math.isclose(replay_graph(pipeline + ending).makespan_us, ended, rel_tol=SAME, abs_tol=SAME)


@given(DURATION, DURATION)
def test_traffic_without_buckets_starts_with_its_window(window: float, traffic: float) -> None:
    graph = [GraphTask("compute", 0, Stream.COMPUTE, window), GraphTask("traffic", 0, Stream.COMMUNICATION, traffic)]
    graph.append(GraphTask("next", 0, Stream.COMPUTE, 1.0, after=(1,)))
    ended = replay_graph(graph).makespan_us
    assert math.isclose(ended, window + left_over(traffic, window, math.inf) + 1.0, rel_tol=SAME)


def test_contiguous_windows_need_no_closed_form() -> None:
    """1F1B, AFAB and the first stage of ZB-H1: the graph decides without it what its dependencies hide."""
    one, two = [[10.0]] * 3, [[20.0]] * 3
    exact = {
        ("1f1b", False): {0, 1, 2},
        ("1f1b", True): {0},
        ("all_forward_all_backward", False): {0, 1, 2},
        ("zero_bubble_h1", False): {0},
        ("interleaved_1f1b", False): set(),
    }
    for (name, blocking), stages in exact.items():
        schedule = SCHEDULES[name]
        chunks = 2 if schedule.chunks else 1
        forward, backward = ([row * chunks for row in rows] for rows in (one, two))
        weight = one if schedule.splits_backward else []
        tasks = pipeline_tasks(schedule, 6, forward, backward, weight, 1.0, blocking)
        ending = ending_tasks(tasks, [StageEnd(8.0, 4, 5.0, 0.0, 1.0, 0.0, 0.0)] * 3, blocking)
        parts = {(task.rank, task.name.removeprefix("gradient reduction, ")): task.duration_us for task in ending}
        assert {stage for stage, part in parts if part == "last bucket"} == stages
        for stage in range(3):
            assert parts[stage, "first buckets" if stage in stages else "hidden"] == (6.0 if stage in stages else 5.0)
