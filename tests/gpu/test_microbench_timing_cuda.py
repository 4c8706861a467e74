"""On a GPU: delays, launch queues, the driver's words, sustained clocks, and a device that is lost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from microbench import cli
from microbench.call import Maker, optimizer_call
from microbench.clocks import CudaClock, Samples
from microbench.device import find_device
from microbench.nvml import gpu_session, gpu_state
from microbench.sustained import measure_sustained
from microbench.table import Status, read_table
from microbench.timing import LEAST_GPU_FLUSH_BYTES
from tests.unit.test_microbench_profile import tiny_sweep

pytestmark = pytest.mark.gpu
FLUSH_BYTES, PASSES = LEAST_GPU_FLUSH_BYTES, 5
TIMING = {"precision": 0.5, "fewest_samples": 3, "most_samples": 3, "budget_ms": 20, "warmup_ms": 1, "batch": 1}
# A table's run that loses the GPU in its second call: an index far outside a table of one row.
LOSE = """
import sys
from microbench import cli, profile
from microbench.call import Call
from microbench.kernels import build_function
calls = []
def broken(name):
    def build(shape, make):
        import torch
        calls.append(shape)
        call = build_function(name)(shape, make)
        if name == "gelu" and len(calls) == 2:
            table = torch.zeros(1, 8, device="cuda")
            far = torch.full((64,), 10**6, device="cuda")
            return Call(lambda: torch.nn.functional.embedding(far, table), call.inputs, call.kernel, call.forward)
        return call
    return build
profile.build_function = broken
sys.exit(cli.main(sys.argv[1:]))
"""


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch", reason="torch is not installed: pip install -e .[profile]")


def timed(run: Any, passes: int = PASSES) -> Samples:
    clock, samples = CudaClock(FLUSH_BYTES, whole_samples=PASSES), Samples()
    for _ in range(passes):
        clock.time(run, samples)
    return samples


def test_kernels_alone_take_what_the_peak_allows_and_less_than_from_an_idle_device(torch: Any) -> None:
    a, b = (torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    samples = timed(lambda: a @ b)
    assert len(samples.kernel_us) == PASSES
    assert 2.0 * 4096**3 / 2500e12 < min(samples.kernel_us) * 1e-6 < 2.0 * 4096**3 / 50e12
    x = torch.randn(64, 64, device="cuda")

    def many() -> Any:
        y = x
        for _ in range(100):
            y = y + 1.0
        return y

    small = timed(many)
    assert not small.host_bound
    assert min(small.kernel_us) < min(small.whole_us), "the gaps between launches are left out"
    assert min(small.host_us) > 100.0, "a hundred launches cost the host more than a microsecond each"


def test_a_step_of_more_launches_than_the_queue_holds_is_host_bound(torch: Any) -> None:
    few, many = (optimizer_call((100_000, tensors), Maker("cuda", "bf16"), "looped") for tensors in (8, 400))
    assert not timed(few.forward).host_bound
    samples = timed(many.forward)
    assert samples.host_bound
    assert len(samples.whole_us) == PASSES


def test_the_driver_answers_every_query(torch: Any) -> None:
    said = gpu_session()
    assert said["driver"].partition(".")[0].isdigit()
    assert len(said) >= 4, f"the driver says only {said}"
    state = gpu_state()
    pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed: pip install -e .[gpu]")
    assert any(value is not None for value in state)


def test_a_product_without_a_pause_is_not_much_faster_than_in_bursts(torch: Any) -> None:
    device = find_device("cuda")
    found = measure_sustained(device, device.precisions[0], seconds=1.0)
    assert 0.4 < found.ratio < 1.15
    assert found.seconds >= 1.0


def test_a_lost_gpu_ends_the_run_with_its_first_cause(tmp_path: Path) -> None:
    sweep = tiny_sweep(tmp_path, timing=TIMING)
    words = ["operator", "gelu", "residual_add", "--device", "cuda", "--precision", "bf16", "--sweep", sweep]
    words += ["--out", str(tmp_path)]
    done = subprocess.run([sys.executable, "-c", LOSE, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert "the GPU is lost: " in done.stderr
    statuses = {row.status for row in read_table(tmp_path / "operator/gelu_bf16.0of1.csv").rows}
    assert statuses == {Status.OK, Status.DEVICE_LOST}
    assert not (tmp_path / "operator/residual_add_bf16.0of1.csv").exists()
    assert cli.main(words) == 0, "another process has the GPU again"
