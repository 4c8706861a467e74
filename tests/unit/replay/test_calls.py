"""Changes of what runtime calls do, from a trace's file to the changed step: launches, waits, what they belong to."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from predictor.replay.answer import ReplayAnswer
from predictor.replay.files.kineto import read_trace
from predictor.replay.graph.build_graph import local_graph
from predictor.replay.graph.gaps import GapKind, gaps
from predictor.replay.question import ReplayQuestion, answer
from tests.unit.kineto_traces import NVIDIA, STREAM, Event, event, public_trace, write

Span = tuple[float, float]


def step(lasts: float) -> Event:
    return event("user_annotation", "ProfilerStep#1", 0, lasts)


def launch(name: str, number: int, called: Span, ran: Span, call: str = "cudaLaunchKernel") -> list[Event]:
    """Return a call and what it starts; times as start and duration."""
    kind = "gpu_memcpy" if name.startswith("Memcpy") else "kernel"
    return [
        event("cuda_runtime", call, *called, correlation=number),
        event(kind, name, *ran, (0, STREAM), device=0, stream=STREAM, correlation=number),
    ]


def replay(folder: Path, events: Sequence[Event], *changes: str) -> ReplayAnswer:
    """Write a trace and replay it with changes."""
    return answer(ReplayQuestion((str(write(folder / "trace.json", events, **NVIDIA)),), None, changes))


def step_us(folder: Path, events: Sequence[Event], *changes: str) -> float:
    return replay(folder, events, *changes).shown.step_us


def launch_bound() -> list[Event]:
    """Return 20 operators of 40 µs every 50 µs, each with a launch of 8 µs after 20 µs, in a step of 1020 µs."""
    events = [step(1020)]
    for number in range(20):
        at = 50.0 * number
        events.append(event("cpu_op", "aten::mm", at, 40))
        events += launch("gemm", number + 1, (at + 20, 8), (at + 30, 10))
    return events


@pytest.mark.parametrize(
    ("text", "us", "touched_us"),
    [
        ("launch_us=4", 940, (160, 80)),
        ("launch_us=16", 1180, (160, 320)),
        ("kernel:gemm=remove", 860, (20 * 8 + 20 * 10, 0)),
    ],
)
def test_launches_are_the_calls_and_not_what_runs_before_them(
    text: str, us: float, touched_us: tuple[float, float], tmp_path: Path
) -> None:
    answered = replay(tmp_path, launch_bound(), text)
    assert answered.shown.step_us == pytest.approx(us)
    (applied,) = answered.applied
    assert (applied.touched.before_us, applied.touched.after_us) == pytest.approx(touched_us)
    assert "20 launches" in applied.touched.what


def test_launch_that_the_gpu_took_late_is_one_call(tmp_path: Path) -> None:
    events = [
        step(400),
        *launch("quick", 1, (5, 8), (15, 2)),
        *launch("loaded first", 2, (20, 200), (210, 50)),
        *launch("next", 3, (270, 8), (280, 50)),
    ]
    answered = replay(tmp_path, events, "launch_us=4")
    (applied,) = answered.applied
    assert (applied.touched.before_us, applied.touched.after_us) == pytest.approx((216, 12))
    assert answered.shown.step_us == pytest.approx(196)


def test_a_gap_names_the_call_that_ended_it(tmp_path: Path) -> None:
    local = local_graph(read_trace(write(tmp_path / "trace.json", launch_bound(), **NVIDIA)))
    on_stream = [gap for gap in gaps(local) if gap.kind is GapKind.LAUNCH]
    assert len(on_stream) == 20
    assert {local.tasks[gap.waited_for].name for gap in on_stream} == {"cudaLaunchKernel"}


def test_launches_of_a_public_trace_take_what_its_calls_take() -> None:
    path = public_trace("hta_trace_diff_control.json.gz")
    answered = answer(ReplayQuestion((str(path),), None, ("launch_us=3",)))
    (applied,) = answered.applied
    names = {"cudaLaunchKernel", "cudaLaunchKernelExC"}
    local = answered.before.step.ranks[0]
    calls_us = sum(task.duration_us for task in local.tasks if task.name in names)
    assert applied.touched.before_us == pytest.approx(calls_us, rel=0.01)


def reading_values() -> list[Event]:
    """Return three kernels of 150 µs, each read by the host (``item``) before it goes on."""
    events = [step(700)]
    for number in range(3):
        at = 200.0 * number
        events.append(event("cpu_op", "aten::mm", at, 30))
        events += launch("gemm", number + 1, (at + 10, 8), (at + 20, 150))
        events.append(event("cpu_op", "aten::item", at + 40, 140))
        events.append(event("cuda_runtime", "cudaStreamSynchronize", at + 45, 130))
    return events


def reading_values_to_the_end() -> list[Event]:
    """Return the same with calls that end with what they wait for, so that no time of theirs is left."""
    return [entry | {"dur": 125} if entry["name"] == "cudaStreamSynchronize" else entry for entry in reading_values()]


@pytest.mark.parametrize("events", [reading_values(), reading_values_to_the_end()])
def test_a_removed_operator_does_not_wait(events: list[Event], tmp_path: Path) -> None:
    answered = replay(tmp_path, events, "operator:aten::item=remove")
    kernels = [span for span in answered.shown.replay.spans if span.name == "gemm"]
    assert [span.start_us for span in kernels] == pytest.approx([20, 170, 320], abs=10)
    assert answered.shown.step_us == pytest.approx(480, abs=20)
    assert step_us(tmp_path, events, "operator:aten::mm*=1") == pytest.approx(700)


def pageable() -> list[Event]:
    """Return a copy to pageable memory, which its call waits for, between two kernels that the host outlasts."""
    return [
        step(1000),
        event("cpu_op", "aten::mm", 300, 40),
        *launch("gemm", 1, (310, 5), (320, 100)),
        event("cpu_op", "aten::to", 350, 200),
        event("cpu_op", "aten::copy_", 355, 190),
        *launch("Memcpy DtoH (Device -> Pageable)", 2, (360, 170), (421, 100), "cudaMemcpyAsync"),
        event("cuda_runtime", "cudaStreamSynchronize", 531, 8),
        event("cpu_op", "aten::mm", 600, 40),
        *launch("gemm", 3, (610, 5), (620, 100)),
    ]


@pytest.mark.parametrize(("text", "us"), [("operator:aten::to=remove", 800), ("kernel:Memcpy*=remove", 830)])
def test_a_removed_copy_does_not_wait(text: str, us: float, tmp_path: Path) -> None:
    assert step_us(tmp_path, pageable(), text) == pytest.approx(us)


def test_a_removed_kernel_leaves_the_waits_of_other_operators(tmp_path: Path) -> None:
    events = [
        step(400),
        *launch("first", 1, (10, 8), (20, 100)),
        *launch("second", 2, (30, 8), (121, 50)),
        event("cuda_runtime", "cudaDeviceSynchronize", 60, 115),
    ]
    assert step_us(tmp_path, events, "kernel:second=remove") == pytest.approx(400 - 50, abs=2)
