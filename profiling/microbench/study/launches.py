"""Host time per launch on this processor, and one training step launched kernel by kernel and as a CUDA graph.

Launches are queued while the GPU is held by a sleep, so the host waits for nothing but itself. Half of what the queue
holds (about a thousand) is queued at a time, or less where one call launches more than one kernel.

The graph holds the whole step: forward, backward, clipping and the optimizer. Both forms start from the same seed and
take the same number of steps, so their losses agree.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from microbench.call import Maker
from microbench.clocks import CudaClock, Samples
from microbench.device import Device
from microbench.study.part import Part
from microbench.study.record import Launches, Step, rounded
from microbench.timing import STEP_SAMPLES, STEP_WARM_UP, time_step
from predictor.core.workload.run import TrainingRun

PRECISION = "bf16"
QUEUED, REPETITIONS = 500, 20
FLUSH_BYTES = 4096  # nothing is kept warm or cold: a launch is timed on the host
WIDTH = 64
STEP = "gpt-350m-2k"  # the least work of profiling/steps: 24 layers, whose kernels are shorter than their launches
CAPTURE_WARM_UP = (
    3  # steps on the capturing stream before the capture. Source: torch.cuda.CUDAGraph, "Whole-network capture"
)
PART_S, STEP_S = 2.0, 12.0


def element_wise(make: Maker) -> Callable[[], object]:
    """Return an addition in place."""
    x = make.constant(WIDTH)
    return lambda: x.add_(1)


def matrix_product(make: Maker) -> Callable[[], object]:
    """Return a product without autograd."""
    a, b = make.constant(WIDTH, WIDTH), make.constant(WIDTH, WIDTH)
    return lambda: a @ b


def linear(make: Maker) -> Callable[[], object]:
    """Return a linear layer's forward pass, recorded for the backward pass."""
    from torch.nn import functional

    x, weight = make.activation(WIDTH, WIDTH), make.weight(WIDTH, WIDTH)
    return lambda: functional.linear(x, weight)


def layer_norm(make: Maker) -> Callable[[], object]:
    """Return a layer norm's forward pass, recorded for the backward pass."""
    from torch.nn import functional

    x, weight = make.activation(WIDTH, WIDTH), make.weight(WIDTH)
    return lambda: functional.layer_norm(x, (WIDTH,), weight)


def attention(make: Maker) -> Callable[[], object]:
    """Return flash attention's forward pass, recorded for the backward pass."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    inputs = tuple(make.activation(1, 1, WIDTH, WIDTH) for _ in range(3))

    def run() -> object:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return scaled_dot_product_attention(*inputs, is_causal=True)

    return run


def linear_gradients(make: Maker) -> Callable[[], object]:
    """Return a linear layer's backward pass: two products, launched by autograd's own thread."""
    import torch

    x, weight = make.activation(WIDTH, WIDTH), make.weight(WIDTH, WIDTH)
    y = torch.nn.functional.linear(x, weight)
    gradient = torch.ones_like(y)
    return lambda: torch.autograd.grad(y, (x, weight), gradient, retain_graph=True)


# Name: what is called, and the kernels that one call launches.
KINDS: dict[str, tuple[Callable[[Maker], Callable[[], object]], int]] = {
    "element-wise addition in place": (element_wise, 1),
    "matrix product": (matrix_product, 1),
    "linear layer, forward with autograd": (linear, 1),
    "layer norm, forward with autograd": (layer_norm, 1),
    "flash attention, forward with autograd": (attention, 1),
    "linear layer, backward by autograd": (linear_gradients, 2),
}


def measure_launches(name: str, device: Device) -> Launches:
    """Time launches of one kind.

    Raises:
        RuntimeError: the host was never ahead of the GPU.
    """
    build, kernels = KINDS[name]
    run, calls = build(Maker(device.kind, PRECISION)), QUEUED // kernels
    clock, samples = CudaClock(FLUSH_BYTES, 1), Samples()

    def queue() -> None:
        for _ in range(calls):
            run()

    clock.time(queue, samples)
    samples.forget_times()
    shortest = len(samples.host_us)  # of the warm-up, kept for the delay
    for _ in range(REPETITIONS):
        clock.time(queue, samples)
    if not samples.kernel_us:
        raise RuntimeError(f"{QUEUED} launches took the host longer than the longest delay")
    launches = calls * kernels
    return Launches(
        name=name,
        launches=launches,
        host_us=rounded([us / launches for us in samples.host_us[shortest:]]),
        device_us=rounded([us / launches for us in samples.kernel_us]),
    )


def the_run() -> TrainingRun:
    """Return the run whose step is timed."""
    from microbench.steps.configuration import CONFIGS, read_steps

    (config,) = read_steps(CONFIGS, [STEP])
    return config.run


def measure_step(form: str, device: Device) -> Step:
    """Time one training step in one form.

    Raises:
        ValueError: the loss is not a number.
    """
    import torch

    from microbench.steps.training import TrainingStep

    cuda: Any = torch.cuda
    step = TrainingStep(the_run(), device.kind, capturable=form == "graph")
    side = cuda.Stream()
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        for _ in range(CAPTURE_WARM_UP):
            step.run()
    cuda.current_stream().wait_stream(side)
    launch: Callable[[], object] = step.run
    if form == "graph":
        graph = cuda.CUDAGraph()
        with cuda.graph(graph):
            step.run()
        launch = graph.replay

    def run(mark: Callable[[str], None]) -> None:
        launch()
        mark("step")

    timed = [time_step(run, device.kind) for _ in range(STEP_WARM_UP + STEP_SAMPLES)][STEP_WARM_UP:]
    loss = float(step.loss)
    if not math.isfinite(loss):
        raise ValueError(f"the loss is {loss}")
    return Step(
        name=STEP,
        form="graph" if form == "graph" else "eager",
        device_us=rounded([each.device_us for each in timed]),
        wall_us=rounded([each.wall_us for each in timed]),
        steps=CAPTURE_WARM_UP + STEP_WARM_UP + STEP_SAMPLES,
        loss=loss,
    )


def parts(device: Device) -> list[Part]:
    """Return a part per kind of launch, then the step in both forms."""
    kinds = [Part(name, PART_S, partial(measure_launches, name, device)) for name in KINDS]
    steps = [Part(f"{STEP}, {form}", STEP_S, partial(measure_step, form, device)) for form in ("eager", "graph")]
    return [*kinds, *steps]
