"""On a GPU, first of all: a product in fp8, flash attention both ways, and kernels told apart from launch gaps."""

from __future__ import annotations

from typing import Any

import pytest

from microbench.call import Maker
from microbench.clocks import CudaClock, Samples
from microbench.device import find_device
from microbench.kernels import build_function
from microbench.system import peak_tflop_per_s
from microbench.timing import LEAST_GPU_FLUSH_BYTES
from predictor.core.costs.work import FP8_PRECISIONS

pytestmark = pytest.mark.gpu
PASSES = 5


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch", reason="torch is not installed: pip install -e .[profile]")


def timed(run: Any, passes: int = PASSES) -> Samples:
    clock, samples = CudaClock(LEAST_GPU_FLUSH_BYTES, whole_samples=PASSES), Samples()
    for _ in range(passes):
        clock.time(run, samples)
    return samples


@pytest.mark.parametrize("precision", FP8_PRECISIONS)
def test_the_peak_is_measured(precision: str, torch: Any) -> None:
    device = find_device("cuda")
    if precision not in device.precisions:
        pytest.skip(f"{device.name} or torch {torch.__version__} has no {precision}")
    assert peak_tflop_per_s(device, precision) > 0.0


def test_flash_attention_runs_forward_and_backward(torch: Any) -> None:
    call = build_function("flash_attention")((2, 1024, 8, 128, 1), Maker("cuda", "bf16"))
    output = call.forward()
    gradients = torch.autograd.grad(output, call.inputs, torch.randn_like(output))
    assert all(bool(gradient.isfinite().all()) for gradient in gradients)


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
