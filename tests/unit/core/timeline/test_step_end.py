"""The end of a step: all stages update once the last has reduced its gradients."""

from __future__ import annotations

from predictor.core.timeline.graph import replay_graph
from predictor.core.timeline.pipeline import Stream, pipeline_tasks
from predictor.core.timeline.schedules import SCHEDULES
from predictor.core.timeline.spans import Span
from predictor.core.timeline.step_end import StageEnd, end_of_step, ending_tasks

REDUCTION, OPTIMIZER = Stream.REDUCTION, Stream.OPTIMIZER


def test_the_last_reduction_starts_every_update() -> None:
    end = end_of_step(finished=[10.0, 6.0, 9.0], exposed=[1.0, 6.0, 0.5], closing=4.0)
    assert end.reduced == [11.0, 12.0, 9.5]
    assert end.critical_stage == 1
    assert end.updating == 12.0
    assert end.step == 16.0


def test_a_stage_waits_for_later_reductions_and_longer_updates() -> None:
    end = end_of_step([10.0, 6.0], [1.0, 2.0], closing=4.0)
    assert end.waiting(0, optimizer=3.0, gather=1.0) == 0.0
    assert end.waiting(1, optimizer=2.0, gather=0.5) == (11.0 - 8.0) + (4.0 - 2.5)


def ending(stages: int, *ends: StageEnd, blocking: bool = False) -> list[Span]:
    """Return the spans of the end behind 1F1B of two micro-batches, 1 µs forward and 2 µs backward."""
    tasks = pipeline_tasks(SCHEDULES["1f1b"], 2, [[1.0]] * stages, [[2.0]] * stages, [], 0.0, blocking)
    spans = replay_graph(tasks + ending_tasks(tasks, ends, blocking)).spans
    return spans[len(tasks) :]


def test_optimizers_wait_for_every_stages_reduction() -> None:
    """The stages end their last slots, 3 and 7 of the graph, at 9 and 7; the end starts at position 16."""
    spans = ending(2, StageEnd(4.0, 1, 0.0, 0.0, 2.0, 0.0, 0.0), StageEnd(3.0, 1, 0.0, 0.0, 1.0, 0.5, 0.0))
    assert [span[:6] for span in spans] == [
        ("gradient reduction", 0, REDUCTION, 9.0, 13.0, (3,)),
        ("gradient reduction", 1, REDUCTION, 7.0, 10.0, (7,)),
        ("optimizer", 0, OPTIMIZER, 13.0, 15.0, (16, 17)),
        ("optimizer", 1, OPTIMIZER, 13.0, 14.0, (16, 17)),
        ("parameter gather", 1, REDUCTION, 14.0, 14.5, (19,)),
    ]


def test_buckets_are_reduced_beside_the_last_backward_pass() -> None:
    """Of four buckets the first is full a quarter into the pass from 4 to 6 µs, at 4.5."""
    (first, last, _) = ending(1, StageEnd(1.0, 4, 0.75, 0.0, 1.0, 0.0, 0.0))
    assert first[:6] == ("gradient reduction, first buckets", 0, REDUCTION, 4.5, 5.25, (2,))
    assert last[:6] == ("gradient reduction, last bucket", 0, REDUCTION, 6.0, 6.25, (3,))


def test_a_reduction_that_has_no_exact_graph_is_hidden_and_exposed() -> None:
    """A blocking message follows the last stage's last pass, so its window is not the end of its pipeline."""
    ends = [StageEnd(1.0, 4, 0.75, 0.0, 1.0, 0.0, 0.0)] * 2
    names = [(span.rank, span.name.removeprefix("gradient reduction, ")) for span in ending(2, *ends, blocking=True)]
    assert names[:4] == [(0, "first buckets"), (0, "last bucket"), (1, "hidden"), (1, "exposed")]


def test_a_tied_reduction_waits_for_both_of_its_stages() -> None:
    tied, plain = StageEnd(2.0, 1, 0.0, 3.0, 1.0, 0.0, 0.0), StageEnd(2.0, 1, 0.0, 0.0, 1.0, 0.0, 0.0)
    spans = ending(3, tied, plain, tied)
    reduced = {span.rank: span.end_us for span in spans if span.name == "gradient reduction"}
    shared = {span.rank: span.start_us for span in spans if span.name == "tied-embedding reduction"}
    assert shared == {0: reduced[0], 2: reduced[0]}
    assert reduced[0] > reduced[2]
    assert all(span.start_us == reduced[0] + 3.0 for span in spans if span.stream == OPTIMIZER)


def test_the_hidden_gather_stands_at_the_start_of_the_step() -> None:
    spans = ending(1, StageEnd(0.0, 1, 0.0, 0.0, 1.0, 0.5, 0.25))
    gathers = [span[:6] for span in spans if span.stream == REDUCTION]
    assert gathers == [
        ("parameter gather, hidden", 0, REDUCTION, 0.0, 0.25, ()),
        ("parameter gather", 0, REDUCTION, 7.0, 7.5, (5,)),
    ]


def test_a_stage_that_reduces_nothing_ends_with_its_last_slot() -> None:
    spans = ending(1, StageEnd(0.0, 1, 0.0, 0.0, 1.0, 0.0, 0.0))
    assert [span[:6] for span in spans] == [("optimizer", 0, OPTIMIZER, 6.0, 7.0, (3,))]
