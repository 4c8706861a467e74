"""A GPU that is behind its host when a step begins: what the step's calls and kernels wait for."""

from __future__ import annotations

import pytest

from predictor.replay.graph.local_graph import CARRIED, EdgeKind, LocalGraph, TaskKind
from predictor.replay.graph.local_replay import graph_tasks_of
from predictor.replay.graph.steady_state import steady_step_us
from tests.unit.hand_made_traces import COMPUTE, HandMade, assert_as_measured, end, number, only, task

PERIOD_US = 1000


def behind() -> HandMade:
    """Three steps of 1000 µs on the host, whose GPU takes as long for each and ends it a step later."""
    made = HandMade()
    for step in range(3):
        start = PERIOD_US * step
        made.step(start, start + PERIOD_US, step)
        for place in range(9):
            called = start + 10 + 5 * place
            ran = PERIOD_US * (step + 1) + 20 + 100 * place
            made.launch(f"kernel {place}", (called, called + 4), (ran, ran + 99))
    return made


def halved_us(local: LocalGraph) -> float:
    """Return the step among many alike with kernels of half the time."""
    tasks = graph_tasks_of(local)
    return steady_step_us(
        [task._replace(duration_us=task.duration_us / (1 + ("kernel" in task.name))) for task in tasks]
    )


def test_work_of_earlier_steps_does_not_count_as_the_latency_of_a_launch() -> None:
    local = behind().graph(step=2)
    assert only(local, "kernel 1", EdgeKind.LAUNCH).lag_us <= 20
    assert_as_measured(local)


@pytest.mark.parametrize("call", ["cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaEventSynchronize"])
def test_a_call_waits_for_work_of_earlier_steps(call: str) -> None:
    made = behind()
    made.call(call, 2002, 2923)
    local = made.graph(step=2)
    awaited = only(local, call, EdgeKind.SYNC).task
    assert (task(local, call).kind, task(local, call).duration_us) == (TaskKind.WAIT, 4)
    assert (local.tasks[awaited].name, end(local, awaited)) == (CARRIED, 919)
    assert_as_measured(local)
    assert halved_us(local) < 0.6 * PERIOD_US


def test_kernels_that_were_launched_before_the_trace_began_are_of_earlier_steps() -> None:
    made = behind()
    made.events = [event for event in made.events if event.row == COMPUTE or event.start_us >= 2 * PERIOD_US]
    made.events = [event for event in made.events if event.end_us > 2 * PERIOD_US]
    local = made.graph()
    assert local.backlog_us == (919, 919)
    assert [one.name for one in local.tasks if one.kind is TaskKind.KERNEL][:9] == 9 * [CARRIED]
    assert steady_step_us(graph_tasks_of(local)) == pytest.approx(PERIOD_US, abs=1)


def test_a_kernel_without_a_known_launch_was_launched_with_the_one_before() -> None:
    made = HandMade()
    made.step(0, PERIOD_US)
    for place in range(3):
        made.launch(f"kernel {place}", (10 + 5 * place, 14 + 5 * place), (20 + 300 * place, 319 + 300 * place))
    made.events = [one for one in made.events if one.start_us != 15]
    made.call("cudaDeviceSynchronize", 30, 925)
    local = made.graph()
    awaited = only(local, "cudaDeviceSynchronize", EdgeKind.SYNC).task
    assert local.tasks[awaited].name == "kernel 2"
    assert only(local, "kernel 1", EdgeKind.ROW).task == number(local, "kernel 0")
    assert_as_measured(local)


def test_a_wait_that_ended_just_before_its_kernel_by_another_clock_waits_for_the_one_before() -> None:
    made = behind()
    made.call("cudaDeviceSynchronize", 2002, 2911)
    local = made.graph(step=2)
    awaited = only(local, "cudaDeviceSynchronize", EdgeKind.SYNC).task
    assert (local.tasks[awaited].name, end(local, awaited)) == (CARRIED, 819)


@pytest.mark.parametrize("name", ["cudaLaunchKernel", "cudaEventRecord"])
def test_a_queue_that_earlier_steps_filled_is_full(name: str) -> None:
    made = HandMade()
    for place in range(600):
        made.launch("kernel before", (10 * place, 10 * place + 5), (20 + 100 * place, 119 + 100 * place))
    made.step(6000, 70_000)
    made.call(name, 6000, 7125)
    made.launch("kernel", (7130, 7135), (60_020, 60_100))
    if name == "cudaLaunchKernel":
        made.launch("kernel", (7140, 7225), (60_120, 60_200))
    local = made.graph()
    waits = [one for one in local.tasks if any(edge.kind is EdgeKind.SYNC for edge in one.after)]
    assert local.tasks[waits[0].after[-1].task].name == CARRIED
    assert_as_measured(local)
