"""What a step does on a GPU and nowhere else, with events in virtual time and tensors on the processor."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import pytest

from microbench import cli
from microbench.device import Device
from microbench.rows import Status
from tests.unit.recorded_steps import GPT, LLAMA, NO_TORCH, content, recorded, written
from tests.unit.virtual_gpu import on_processor


class Event:
    """Stamped by a device whose clock moves one millisecond with everything that is told."""

    told: ClassVar[list[str]] = []

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing
        self.at_ms = 0.0

    def record(self) -> None:
        self.told.append("event")
        self.at_ms = float(len(self.told))

    def elapsed_time(self, later: Event) -> float:
        return later.at_ms - self.at_ms


@pytest.fixture
def virtual_gpu(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Put events in virtual time, and waiting that is told, in the place of a GPU's."""
    torch = pytest.importorskip("torch", reason=NO_TORCH)
    told: list[str] = []
    monkeypatch.setattr(Event, "told", told)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: told.append("wait"))
    return told


def test_a_gpu_is_waited_for_before_and_behind_a_step_and_nowhere_between(virtual_gpu: list[str]) -> None:
    from microbench.timing import time_step

    def run(mark: Any) -> None:
        for part in ("forward", "backward", "forward", "backward", "optimizer"):
            virtual_gpu.append(part)
            mark(part)

    timed = time_step(run, "cuda")
    assert [virtual_gpu[0], *virtual_gpu[-2:]] == ["wait", "event", "wait"]
    assert virtual_gpu.count("wait") == 2
    assert timed.parts_us == {"forward": 4000.0, "backward": 4000.0, "optimizer": 2000.0}
    assert timed.device_us == 10_000.0


def test_the_command_for_a_gpu_runs_to_its_end_in_virtual_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, virtual_gpu: list[str]
) -> None:
    torch = pytest.importorskip("torch", reason=NO_TORCH)
    from microbench.steps import check, measure
    from microbench.steps.kernels import Launch
    from microbench.timing import time_step

    gpu = Device("cuda", "VirtualGPU", "1.2", 2**20, 132, 2**30, ("bf16", "fp16", "fp32"))
    monkeypatch.setattr("microbench.steps.cli.find_device", lambda kind, threads: gpu)
    memory = {"reset_peak_memory_stats": None, "max_memory_allocated": 5, "max_memory_reserved": 7, "empty_cache": None}
    for name, value in memory.items():
        monkeypatch.setattr(torch.cuda, name, lambda value=value: value)
    calls: list[str] = []

    def timed(run: Any, kind: str) -> Any:
        calls.append("timed")
        return time_step(run, kind)

    def profiled(run: Any) -> Any:
        calls.append("profiled")
        return [Launch("gemm", 2.0)]

    monkeypatch.setattr(measure, "time_step", timed)
    monkeypatch.setattr(measure, "record_launches", profiled)
    for name in ("llama", "second"):
        written(tmp_path / "configs", name, content(LLAMA))
    words = ["--configs", str(tmp_path / "configs"), "--out", str(tmp_path / "out"), "--device", "cuda"]
    with on_processor():
        assert cli.main(["steps", *words]) == 0
    check.agreement.cache_clear()
    record = recorded(tmp_path / "out")["llama"]
    assert (record.status, record.reason, record.device, record.driver) == (Status.OK, "", "VirtualGPU", "1.2")
    assert record.settings["attention of the check in fp32"] == "MATH"
    assert record.measured is not None
    assert record.measured.memory is not None
    assert (record.measured.memory.allocated, record.measured.memory.reserved) == (5, 7)
    assert record.measured.kernels is not None
    assert "".join(call[0] for call in calls).strip("t") == "pp", "no step is timed after a profile"
    # Two micro-batches forward and backward and the optimizer, each one event after the one before.
    assert {sample.device_us for sample in record.measured.samples} == {5000.0}
    assert {sample.optimizer_us for sample in record.measured.samples} == {1000.0}
    written(tmp_path / "configs", "plain", content(LLAMA, "fp32"))
    assert cli.main(["steps", *words]) == 2  # flash attention takes no fp32 on a GPU


class FakeEvent(NamedTuple):
    """What torch's profiler tells of one event."""

    name: str
    device_type: Any
    time_range: Any
    is_user_annotation: bool = False


def test_launches_are_what_ran_on_the_gpu_and_nothing_is_lost_without_a_profiler(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch = pytest.importorskip("torch", reason=NO_TORCH)
    from torch.autograd import DeviceType
    from torch.autograd.profiler_util import Interval

    from microbench.steps.kernels import record_launches

    ran: list[str] = []
    monkeypatch.setattr(torch.profiler, "supported_activities", set)
    assert record_launches(lambda: ran.append("step")) == []
    assert not ran

    class Profile:
        """Tells of two kernels, a span over them, and a call on the host."""

        def __init__(self, activities: Any) -> None:
            assert activities == [torch.profiler.ProfilerActivity.CUDA]

        def __enter__(self) -> Profile:
            return self

        def __exit__(self, *error: object) -> None:
            assert ran == ["step", "wait"]

        def events(self) -> list[FakeEvent]:
            gpu, cpu = DeviceType.CUDA, DeviceType.CPU
            return [
                FakeEvent("gemm", gpu, Interval(0.0, 5.0)),
                FakeEvent("Memset (Device)", gpu, Interval(5.0, 6.0)),
                FakeEvent("span", gpu, Interval(0.0, 6.0), is_user_annotation=True),
                FakeEvent("Optimizer.step#AdamW.step", gpu, Interval(0.0, 6.0)),
                FakeEvent("cudaLaunchKernel", cpu, Interval(0.0, 2.0)),
            ]

    monkeypatch.setattr(torch.profiler, "supported_activities", lambda: {torch.profiler.ProfilerActivity.CUDA})
    monkeypatch.setattr(torch.profiler, "profile", Profile)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: ran.append("wait"))
    assert record_launches(lambda: ran.append("step")) == [("gemm", 5.0), ("Memset (Device)", 1.0)]


def test_a_device_is_lost_where_it_answers_nothing_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch", reason=NO_TORCH)
    from microbench.steps.measure import is_lost

    def refuse(*sizes: int, device: str) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(torch, "ones", refuse)
    assert is_lost("cuda")
    assert not is_lost("cpu")


def test_a_step_is_left_where_warming_up_shows_that_it_takes_too_long(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason=NO_TORCH)
    from microbench.steps.measure import record_step

    processor = Device("cpu", "Processor", None, 2**20, 1, 2**30, ("fp32",))
    config = written(tmp_path, "gpt", content(GPT))
    assert record_step(config, processor, deadline=0.0) is None
    recorded_step = record_step(config, processor)
    assert recorded_step is not None
    assert recorded_step.status is Status.OK
