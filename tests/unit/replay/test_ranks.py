"""Several ranks replay together: who comes last sets the start of a collective, whatever is changed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from predictor.replay.answer import answered, measured
from predictor.replay.breakdown import DATA_PARALLEL, WAITING
from predictor.replay.collectives import waits_between
from predictor.replay.document import to_json
from predictor.replay.graph.global_graph import global_graph
from predictor.replay.graph.local_graph import LocalGraph
from predictor.replay.text import render
from predictor.replay.whatif.changes import Means
from predictor.replay.whatif.traced_step import TracedStep, joined
from tests.unit.traced_steps import ALL_REDUCE, K_MM, gpu_rank

LATE_US = 30.0
NO_MEANS = Means()


def slow_rank() -> LocalGraph:
    """Return rank 1, whose backward kernel takes 30 µs longer, so that everything behind it is as much later."""
    local = gpu_rank()
    tasks = [
        task._replace(start_us=task.start_us + LATE_US) if at >= ALL_REDUCE else task
        for at, task in enumerate(local.tasks)
    ]
    tasks[K_MM] = tasks[K_MM]._replace(duration_us=tasks[K_MM].duration_us + LATE_US)
    return replace(local, rank=1, tasks=tasks, step_us=local.step_us + LATE_US)


def fast_rank() -> LocalGraph:
    """Return rank 0, which waits 30 µs for rank 1 in its all-reduce."""
    local = gpu_rank()
    tasks = [
        task._replace(start_us=task.start_us + LATE_US) if at > ALL_REDUCE else task
        for at, task in enumerate(local.tasks)
    ]
    tasks[ALL_REDUCE] = tasks[ALL_REDUCE]._replace(duration_us=50.0 + LATE_US)
    return replace(local, tasks=tasks, step_us=local.step_us + LATE_US)


def step() -> TracedStep:
    return joined(global_graph([fast_rank(), slow_rank()]))


def test_the_measured_step_comes_back_with_the_waiting_apart() -> None:
    answer = answered(step(), (), NO_MEANS)
    assert answer.error == pytest.approx(0.0)
    fast, slow = answer.before.parts
    assert (fast.parts[WAITING], slow.parts[WAITING]) == pytest.approx((LATE_US, 0.0))
    assert fast.parts[DATA_PARALLEL] == slow.parts[DATA_PARALLEL] == pytest.approx(50.0)
    assert [parts.parts for parts in measured(answer.before.step).parts] == [
        pytest.approx(parts.parts) for parts in answer.before.parts
    ]
    (wait,) = waits_between(answer.before.step, answer.before.replay.spans)
    assert (wait.rank, wait.waited_for) == (0, 1)
    assert wait.us == pytest.approx(LATE_US)
    assert "Collectives of rank 0 wait 0.030 ms for rank 1, beside other work or not." in render(answer)
    assert to_json(answer, [])["replayed"]["waits"] == [{"rank": 0, "waited_for": 1, "us": pytest.approx(LATE_US)}]


@pytest.mark.parametrize(
    ("text", "faster_us"),
    [
        ("kernel:gemm_backward*=0.5", 65.0),  # of the slow rank; the fast one waits still
        ("communication*=0.5", 25.0),
        ("overlap=false", 0.0),
        ("overlap=true", 0.0),
        ("bucket_mb=1", 0.0),
        ("ranks=4", -25.0),
        ("operator:c10d::allreduce_=remove", 50.0),
    ],
)
def test_changes_reach_all_ranks(text: str, faster_us: float) -> None:
    answer = answered(step(), [text], NO_MEANS)
    assert answer.after is not None
    assert answer.before.step_us - answer.after.step_us == pytest.approx(faster_us)
    for parts in answer.after.parts:
        assert parts.step_us == pytest.approx(answer.after.step_us)


def test_many_ranks_are_cut_in_the_table_and_not_in_the_json() -> None:
    ranks = [replace(gpu_rank(), rank=rank, world_size=20) for rank in range(20)]
    answer = answered(joined(global_graph(ranks)), (), NO_MEANS)
    text = render(answer)
    assert "4 more ranks: --json has all." in text
    assert "rank 15" in text
    assert "rank 16" not in text
    assert all(len(line) <= 100 for line in text.splitlines())
    assert len(to_json(answer, [])["replayed"]["ranks"]) == 20


def test_a_collective_counts_once_on_each_rank() -> None:
    answer = answered(step(), ["communication*=0.5"], NO_MEANS)
    assert answer.applied[0].touched.what == "2 collectives"
    assert answer.applied[0].touched.before_us == pytest.approx(100.0)
