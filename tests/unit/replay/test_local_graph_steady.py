"""The time that one more step adds, beside the end of a step alone."""

from __future__ import annotations

import pytest

from predictor.replay.graph.local_replay import graph_tasks_of
from predictor.replay.graph.steady_state import steady_step_us
from tests.unit.hand_made_traces import HandMade, number


def test_step_that_waits_for_its_gpu_takes_as_long_among_many() -> None:
    made = HandMade()
    made.step(0, 500)
    made.launch("kernel", (10, 15), (20, 400))
    made.call("cudaDeviceSynchronize", 30, 405)
    local = made.graph()
    assert local.step_us == 500
    assert steady_step_us(graph_tasks_of(local)) == 500


def test_tail_of_a_gpu_that_lags_is_hidden_by_the_next_step() -> None:
    made = HandMade()
    made.step(0, 100)
    made.launch("short", (10, 15), (20, 30))
    made.launch("tail", (90, 95), (100, 180))
    local = made.graph()
    assert local.step_us == 180
    assert steady_step_us(graph_tasks_of(local)) == pytest.approx(100)


def gpu_bound() -> HandMade:
    """Two steps of a host that takes 100 µs and a GPU that takes 301."""
    made = HandMade()
    for step, start in enumerate((0, 100)):
        made.step(start, start + 100, step)
        for place in range(3):
            called = start + 10 + 10 * place
            ran = 20 + 301 * step + 100 * place + place // 2
            made.launch(f"kernel {place}", (called, called + 5), (ran, ran + 99 + place % 2))
    return made


def test_step_of_a_slow_gpu_takes_the_gpus_time_among_many() -> None:
    local = gpu_bound().graph(step=1)
    assert local.facts["carried_us"] == 220
    assert local.facts["period_us"] == pytest.approx(300, abs=1)
    assert local.step_us == pytest.approx(520, abs=1)
    assert steady_step_us(graph_tasks_of(local)) == pytest.approx(301, abs=2)


def test_change_of_a_slow_gpu_shows_as_a_whole() -> None:
    local = gpu_bound().graph(step=1)
    tasks = graph_tasks_of(local)
    for place in range(3):
        kernel = number(local, f"kernel {place}")
        tasks[kernel] = tasks[kernel]._replace(duration_us=tasks[kernel].duration_us / 2)
    assert steady_step_us(tasks) == pytest.approx(301 / 2, abs=3)
