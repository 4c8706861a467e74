"""On a GPU: launch queues, the driver's words, sustained clocks, and a device that is lost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from microbench import cli
from microbench.call import Maker, optimizer_call
from microbench.device import find_device
from microbench.nvml import gpu_session, gpu_state
from microbench.system import measure_sustained
from microbench.table import Status, read_table
from tests.gpu.test_microbench_smoke_cuda import PASSES, timed
from tests.unit.microbench.test_profile import tiny_sweep

pytestmark = pytest.mark.gpu
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
