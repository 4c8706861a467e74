"""Changes of any traced step: less work is never slower, and every breakdown adds up."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor.core.timeline.graph import GraphTask
from predictor.replay.answer import answered, replayed
from predictor.replay.graph.local_graph import (
    Collective,
    Edge,
    EdgeKind,
    LocalGraph,
    TaskKind,
    TracedOperator,
    TracedTask,
)
from predictor.replay.whatif.changes import Means, apply_changes, settings_of
from predictor.replay.whatif.traced_step import TracedStep
from tests.unit.traced_steps import graph_tasks, operator, single_rank

ROWS = ("thread 1", "stream 7", "stream 20")
PASSES = ("forward", "backward", "optimizer")


@st.composite
def steps(draw: st.DrawFn) -> TracedStep:
    """Return a step of launches and kernels, some of them collectives, some waited for by the host."""
    tasks: list[TracedTask] = []
    operators: list[TracedOperator] = []
    collectives: list[Collective] = []
    gradients: list[int] = []
    times = st.floats(1.0, 100.0)
    for number in range(draw(st.integers(1, 8))):
        launch = len(tasks)
        is_collective = bool(gradients) and draw(st.booleans())
        tasks.append(TracedTask("launch", TaskKind.HOST, 0, 0.0, draw(times), (), number))
        edges = [Edge(launch, draw(st.floats(0.0, 5.0)), EdgeKind.LAUNCH)]
        if is_collective:
            ready = [operators[gradient].tasks[1] for gradient in gradients]
            edges += [Edge(at, 0.0, EdgeKind.GRADIENT) for at in ready]
            collectives.append(
                Collective(launch + 1, "all_reduce", "", (0, 1), 4096, len(collectives), tuple(gradients))
            )
            gradients = []
        kind, row = (TaskKind.COLLECTIVE, 2) if is_collective else (TaskKind.KERNEL, 1)
        tasks.append(TracedTask(f"kernel {number}", kind, row, 0.0, draw(times), tuple(edges), number))
        operators.append(operator(f"aten::op{number % 3}", draw(st.sampled_from(PASSES)), (launch, launch + 1), 1.0))
        if not is_collective and operators[-1].step_pass == "backward":
            gradients.append(number)
    waited_for = draw(st.sets(st.integers(0, len(tasks) - 1), max_size=2))
    waits = [(Edge(task, 0.0, EdgeKind.SYNC),) for task in waited_for]
    tasks += [TracedTask("wait", TaskKind.WAIT, 0, 0.0, draw(times), after) for after in waits]
    local = LocalGraph(0, 2, "step", 1.0, 0.0, "cuda", "", ROWS, tasks, operators, collectives, {})
    graph: list[GraphTask] = graph_tasks(local)
    spans = single_rank(local, graph).replay().spans
    started = [task._replace(start_us=span.start_us) for task, span in zip(tasks, spans, strict=True)]
    end_us = max(span.end_us for span in spans)
    return single_rank(replace(local, tasks=started, step_us=end_us), graph)


def step_us(step: TracedStep, *texts: str) -> float:
    return apply_changes(step, settings_of(texts), Means())[0].replay().makespan_us


@given(steps(), st.floats(0.0, 1.0))
def test_less_is_never_slower(step: TracedStep, factor: float) -> None:
    unchanged = step.replay().makespan_us
    for text in (f"operator:aten::op0*={factor}", f"kernel:kernel*=x{factor}", f"host*={factor}", "operator:*0=x0"):
        assert step_us(step, text) <= unchanged + 1e-6


@given(steps())
def test_a_factor_of_one_changes_nothing_and_two_factors_multiply(step: TracedStep) -> None:
    assert step_us(step, "host*=1", "kernel:*=x1") == pytest.approx(step.replay().makespan_us)
    assert step_us(step, "host*=0.5", "host*=0.5") == pytest.approx(step_us(step, "host*=0.25"))


@given(steps())
def test_a_change_leaves_the_measured_step_alone(step: TracedStep) -> None:
    before = list(step.tasks)
    step_us(step, "kernel:*=x0.5", "host*=3")
    assert list(step.tasks) == before


@given(steps(), st.sampled_from(["host*=2", "kernel:*=x0.25"]))
def test_parts_paths_and_moves_add_up(step: TracedStep, text: str) -> None:
    answer = answered(step, [text], Means())
    assert answer.after is not None
    for replay in (answer.before, answer.after):
        assert replay.parts[0].step_us == pytest.approx(replay.step_us, abs=1e-6)
        assert sum(share.path_us for share in replay.path) == pytest.approx(replay.step_us, abs=0.1)
    difference = answer.after.step_us - answer.before.step_us
    assert sum(move.change_us for move in answer.moves) == pytest.approx(difference, abs=0.2)


@given(steps())
def test_gradients_reduced_at_the_end_are_no_faster_than_in_time(step: TracedStep) -> None:
    if not any(collective.gradients for collective in step.ranks[0].collectives):
        return
    unchanged = step.replay().makespan_us
    assert step_us(step, "overlap=true") <= step_us(step, "overlap=false") + 1e-6
    assert step_us(step, "overlap=true") <= unchanged + 1e-6
    regrouped = apply_changes(step, settings_of(["bucket_mb=1000"]), Means())[0]
    is_regrouped = sum(bool(collective.gradients) for collective in step.ranks[0].collectives) > 1
    assert len(regrouped.added) == is_regrouped
    assert replayed(regrouped).parts[0].step_us == pytest.approx(regrouped.replay().makespan_us, abs=1e-6)
