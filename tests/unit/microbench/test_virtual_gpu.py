"""The path of a GPU in virtual time: every operator both ways, delays and queues, faults, resuming."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from microbench import cli, profile
from microbench.clocks import LONGEST_DELAY_US
from microbench.device import Device, find_device
from microbench.kernels import build_function
from microbench.profile import memory_bytes
from microbench.provenance import provenance_path
from microbench.sweep import SWEEPS, read_sweep, shapes_of
from microbench.table import Status, Table, read_table, read_tables
from microbench.timing import clock_for
from predictor.core.costs.catalogue import catalogue
from predictor.core.costs.operator import Direction
from tests.unit.virtual_gpu import QUEUE, VirtualGpu, installed, pass_seconds, scaled_build

torch = pytest.importorskip("torch", reason="torch is not installed: pip install -e .[profile]")
TIMING = {"precision": 0.5, "fewest_samples": 3, "most_samples": 3, "budget_ms": 20, "warmup_ms": 1}
LOST = "CUDA error: an illegal memory access was encountered"


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[VirtualGpu]:
    device = VirtualGpu()
    with installed(monkeypatch, device):
        yield device


def sweep(folder: Path, base: str = "smoke", shapes: int = 3, **models: object) -> str:
    content = yaml.safe_load((SWEEPS / f"{base}.yaml").read_text())
    content |= {"shapes_per_operator": shapes, "shapes_per_linear": shapes, "timing": TIMING}
    if base == "smoke":
        content |= {"largest_call_gflop": 0.1, "largest_call_mb": 2}
    # The processor behind the virtual GPU has no memory-efficient backend, which takes a window's mask.
    content["models"] |= {"sliding_window": [0]} | models
    path = folder / "sweep.yaml"
    path.write_text(yaml.safe_dump(content))
    return str(path)


def measure(folder: Path, *names: str, given: str = "") -> int:
    words = ["operator", *names, "--device", "cuda", "--sweep", given or sweep(folder), "--precision", "bf16"]
    return cli.main([*words, "--out", str(folder / "r")])


def table(folder: Path, name: str) -> Table:
    return read_table(folder / f"r/operator/{name}_bf16.0of1.csv")


def failing(monkeypatch: pytest.MonkeyPatch, names: set[str], error: Exception, after: int = 0) -> Callable[[], None]:
    """Make the kernels of some operators fail once so many calls were built; return what mends them."""
    built = dict.fromkeys(names, 0)

    def broken(name: str) -> Any:
        def build(shape: Any, make: Any) -> Any:
            if name in built:
                built[name] += 1
                if built[name] > after:
                    raise error
            return build_function(name)(shape, make)

        return build

    monkeypatch.setattr(profile, "build_function", broken)
    return lambda: monkeypatch.setattr(profile, "build_function", build_function)


def test_every_operator_has_good_rows_both_ways_and_a_second_run_measures_nothing(
    gpu: VirtualGpu, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert measure(tmp_path, "all") == 0, capsys.readouterr().err
    tables = read_tables(tmp_path / "r", "operator")
    assert {found.provenance.identity.name for found in tables} == {
        name for name in catalogue() if (tmp_path / f"r/operator/{name}_bf16.0of1.csv").is_file()
    }
    for found in tables:
        name = found.provenance.identity.name
        assert len(found.rows) == 3 * len(catalogue()[name].directions)
        for row in found.rows:
            assert row.status is Status.OK, f"{name} {row.shape} {row.direction}: {row.kernel}"
            assert row.kernel_samples_us
            assert row.host_us
            assert row.median_us >= min(row.kernel_samples_us) - 0.01, "gaps are counted from an idle device only"
    launched = gpu.launches
    assert measure(tmp_path, "all") == 0
    assert gpu.launches - launched < 3 * len(tables), "clocks are set up, nothing is measured"


@pytest.mark.parametrize("name", ["embedding_update", "gated_delta_rule", "ssd_scan"])
def test_no_pass_waits_for_the_host_or_fills_the_queue(
    gpu: VirtualGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    longest = max(shapes_of(name, read_sweep("standard"), "bf16"), key=lambda shape: shape[1])

    def build(name: str) -> Any:
        # One sample in one head of few numbers, in as many chunks: as many launches as the sweep's longest.
        small = {"gated_delta_rule": (1, longest[1], 1, 8, 8, 64), "ssd_scan": (1, longest[1], 1, 8, 8, 1, 256)}
        return lambda shape, make: build_function(name)(small.get(name, (64, 32, 4, 2)), make)

    monkeypatch.setattr(profile, "build_function", build)
    assert measure(tmp_path, name, given=sweep(tmp_path, "standard")) == 0
    for row in table(tmp_path, name).rows:
        assert row.status is Status.OK, f"{row.shape} {row.direction}"
        assert row.kernel_samples_us


def test_a_pass_that_waits_for_the_host_is_host_bound(
    gpu: VirtualGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(name: str) -> Any:
        def waiting(shape: Any, make: Any) -> Any:
            call = build_function(name)(shape, make)
            return replace(call, forward=lambda: (torch.ones(4).nonzero(), call.forward())[1])

        return waiting

    monkeypatch.setattr(profile, "build_function", build)
    assert measure(tmp_path, "gelu") == 0
    by_direction = {row.direction: row.status for row in table(tmp_path, "gelu").rows}
    assert by_direction == {Direction.FORWARD: Status.HOST_BOUND, Direction.BACKWARD: Status.OK}


@pytest.mark.parametrize(
    ("major", "precisions"), [(7, ("fp16", "fp32")), (8, ("bf16", "fp16", "fp32"))], ids=["Volta", "Ampere"]
)
def test_bf16_that_a_gpu_emulates_is_not_measured(
    gpu: VirtualGpu, monkeypatch: pytest.MonkeyPatch, major: int, precisions: tuple[str, ...]
) -> None:
    properties = SimpleNamespace(multi_processor_count=80, major=major, minor=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda *_: properties)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda *_, **__: True)  # counts emulation, as torch does
    assert find_device("cuda").precisions == precisions


def test_kernel_times_are_those_of_the_kernels(
    gpu: VirtualGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profile, "build_function", scaled_build(gpu, build_function))
    assert measure(tmp_path, "gelu", given=sweep(tmp_path, "standard")) == 0
    for row in table(tmp_path, "gelu").rows:
        expected_us = 1e6 * pass_seconds(catalogue()["gelu"], row.shape, row.direction)
        assert min(row.kernel_samples_us) == pytest.approx(expected_us, rel=0.2, abs=5.0)


def test_a_list_of_more_launches_than_the_queue_holds_is_host_bound_and_harms_nothing_after_it(
    gpu: VirtualGpu, tmp_path: Path
) -> None:
    few, many = {"low": 4, "high": 8}, {"low": 400, "high": 500}
    parameters = {"low": 600_000, "high": 800_000}
    looped = "optimizer_step_looped"
    assert measure(tmp_path, looped, given=sweep(tmp_path, tensors=many, parameters=parameters)) == 0
    for row in table(tmp_path, looped).rows:
        assert row.shape[1] * 3 > QUEUE
        assert row.status is Status.HOST_BOUND
        assert row.samples_us
        assert not row.kernel_samples_us
    assert gpu.longest_sleep_s <= 1.01e-6 * LONGEST_DELAY_US
    slept, gpu.longest_sleep_s = gpu.longest_sleep_s, 0.0
    assert slept > 0.9e-6 * LONGEST_DELAY_US
    second = tmp_path / "second"
    second.mkdir()
    assert measure(second, "gelu", looped, given=sweep(second, tensors=few, parameters=parameters)) == 0
    for name in ("gelu", looped):
        assert all(row.kernel_samples_us for row in table(second, name).rows)
    assert gpu.longest_sleep_s < 0.1 * slept, "a delay is a call's own"


def test_a_failed_call_is_tried_again_after_what_is_new(
    gpu: VirtualGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mend = failing(monkeypatch, {"gelu"}, RuntimeError("No available kernel"), after=1)
    assert measure(tmp_path, "gelu", "softmax") == 0
    assert "2 without a time: No available kernel" in capsys.readouterr().err
    before = table(tmp_path, "gelu").rows
    assert measure(tmp_path, "gelu") == 0
    assert table(tmp_path, "gelu").rows == before, "a call that fails as before is not written again"
    mend()
    assert measure(tmp_path, "gelu") == 0
    rows = table(tmp_path, "gelu").rows
    assert {row.status for row in rows} == {Status.OK}
    assert len(rows) == len(before)


@pytest.mark.parametrize("error", [TypeError("unexpected keyword argument 'window_size'"), ImportError("libcudart")])
def test_an_operator_without_one_good_row_fails_the_run_when_all_others_are_measured(
    gpu: VirtualGpu,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: Exception,
) -> None:
    failing(monkeypatch, {"gelu"}, error)
    assert measure(tmp_path, "gelu", "softmax") == 1
    assert f"error: gelu: no call could be timed: {error}" in capsys.readouterr().err
    assert {row.status for row in table(tmp_path, "softmax").rows} == {Status.OK}


def test_a_lost_gpu_ends_the_run_with_its_first_cause_and_the_next_run_begins_elsewhere(
    gpu: VirtualGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mend = failing(monkeypatch, {"dtype_cast"}, RuntimeError(LOST), after=1)
    assert measure(tmp_path, "dtype_cast", "residual_add") == 1
    assert f"the GPU is lost: {LOST}; every row so far is kept" in capsys.readouterr().err
    assert not (tmp_path / "r/operator/residual_add_bf16.0of1.csv").exists()
    counted = [row.status for row in table(tmp_path, "dtype_cast").rows]
    assert counted == [Status.OK] * 2 + [Status.DEVICE_LOST] * 2
    assert measure(tmp_path, "dtype_cast", "residual_add") == 1
    assert {row.status for row in table(tmp_path, "residual_add").rows} == {Status.OK}
    mend()
    assert measure(tmp_path, "dtype_cast", "residual_add") == 0
    assert {row.status for row in table(tmp_path, "dtype_cast").rows} == {Status.OK}


def test_a_gpu_that_answers_nothing_is_lost_whatever_the_error_said(
    gpu: VirtualGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = gpu.launch

    def launch(seconds: float) -> None:
        gpu.lost = gpu.launches > 40
        if gpu.lost:
            raise RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED")
        real(seconds)

    monkeypatch.setattr(gpu, "launch", launch)
    assert measure(tmp_path, "gelu", "softmax") == 1
    assert "the GPU is lost: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED" in capsys.readouterr().err


def test_a_driver_of_the_same_branch_and_another_system_kernel_go_on_and_are_recorded(
    gpu: VirtualGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert measure(tmp_path, "gelu", given=sweep(tmp_path, shapes=3)) == 0
    monkeypatch.setattr("microbench.device.gpu_session", lambda: {"driver": "580.200.01"})
    monkeypatch.setattr("microbench.device.platform.release", lambda: "9.9.9")
    monkeypatch.setattr("microbench.device.platform.python_version", lambda: "3.99")
    assert measure(tmp_path, "gelu") == 0
    sessions = table(tmp_path, "gelu").provenance.sessions
    assert [session.environment["kernel"].endswith("9.9.9") for session in sessions] == [False, True]
    assert [session.state_before["driver"] for session in sessions] == ["580.159.04", "580.200.01"]


def test_another_branch_of_the_driver_is_another_table(
    gpu: VirtualGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert measure(tmp_path, "gelu") == 0
    monkeypatch.setattr("microbench.device.gpu_session", lambda: {"driver": "535.1"})
    assert measure(tmp_path, "gelu") == 2
    assert "driver was 580, is 535; measure into another results folder" in capsys.readouterr().err


def test_a_row_names_its_libraries_and_its_code(gpu: VirtualGpu, tmp_path: Path) -> None:
    assert measure(tmp_path, "gelu") == 0
    found = table(tmp_path, "gelu").provenance
    assert {"torch", "cuda"} <= found.identity.versions.keys()
    assert "python" not in found.identity.versions
    assert found.sessions[0].commit != "unknown"
    assert provenance_path(tmp_path / "r/operator/gelu_bf16.0of1.csv").is_file()


def test_the_last_calls_tensors_are_gone_when_the_next_is_built(
    gpu: VirtualGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import weakref

    alive: list[Any] = []

    def build(name: str) -> Any:
        def built(shape: Any, make: Any) -> Any:
            assert not any(reference() is not None for reference in alive), "two calls' tensors at a time"
            call = build_function(name)(shape, make)
            alive.extend(weakref.ref(tensor) for tensor in call.inputs)
            return call

        return built

    monkeypatch.setattr(profile, "build_function", build)
    assert measure(tmp_path, "gelu", "layer_norm") == 0
    assert {row.status for row in table(tmp_path, "layer_norm").rows} == {Status.OK}
    assert {row.direction for row in table(tmp_path, "gelu").rows} == set(Direction)


def test_at_least_256_mb_are_overwritten_before_every_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    with installed(monkeypatch, VirtualGpu()):
        monkeypatch.undo()
        monkeypatch.setattr(torch.cuda, "Event", VirtualGpu().event)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda *_: object())
        monkeypatch.setattr(torch, "zeros", lambda count, **_: made.append(4 * count))
        for cache in (50 * 2**20, 400 * 2**20):
            clock_for(Device("cuda", "GPU", "580", cache, 132, 2**34, ("bf16",)), read_sweep("standard").timing)
    assert made == [256_000_000, 524_288_000]


def test_lists_of_parameters_are_as_long_as_the_sweep_says() -> None:
    shapes = shapes_of("optimizer_step", read_sweep("standard"), "bf16")
    assert sum(parameters > 284_000_000 for parameters, _ in shapes) > 5
    assert max(parameters for parameters, _ in shapes) > 2_000_000_000
    largest = memory_bytes(catalogue()["optimizer_step"], max(shapes), "bf16")
    assert largest < 79 * 2**30, "the largest fits an 80 GB GPU"


def test_grouped_attention_is_measured_where_heads_are_shared_or_a_window_hides_keys() -> None:
    for name in ("standard", "full", "smoke"):
        for _, length, heads, kv_heads, _, _, window in shapes_of("grouped_query_attention", read_sweep(name), "bf16"):
            assert kv_heads < heads or 0 < window < length
