"""Products of a linear layer one by one: forward, input gradient (dgrad), and weight gradient (wgrad) in four forms.

y = x·Wᵀ with x (m, k) and W (n, k) as torch.nn.Linear stores it. The weight gradient is made in the training precision,
in fp32, added to fp32 inside the product, or made in the training precision and added to fp32 by a second kernel: the
third is what Megatron-LM's gradient_accumulation_fusion does, the fourth what runs without it. The forms of one layer
share its tensors and take turns.

Source: Megatron-LM core/tensor_parallel/layers.py, LinearWithGradAccumulationAndAsyncCommunication.backward.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from microbench.call import Call, Maker
from microbench.clocks import Clock
from microbench.device import Device
from microbench.study.part import Part
from microbench.study.record import GradientProducts, pass_of
from microbench.timing import Policy, Timed, clock_for, take_turns
from predictor.core.costs.operator import Direction, Shape

PRECISION = "bf16"
POLICY = Policy(precision=0.02, fewest_samples=5, most_samples=25, budget_ms=100.0, warmup_ms=60.0)
PART_S = 4.0
TOKENS = (8192, 2048, 16384)
# Input and output features.
LAYERS = (
    (4096, 28672), (14336, 4096), (4096, 6144), (4096, 4096), (4096, 128256),  # Llama 3 8B: FFN, attention, head
    (8192, 7168), (3584, 8192), (8192, 1280), (1024, 8192),  # Llama 3 70B, tensor parallel 8: FFN, attention
    (2048, 8192), (8192, 2048), (2048, 6144), (2048, 2048),  # GPT of 1.3B parameters: FFN, attention
)  # fmt: skip


def forms(shape: Shape, make: Maker) -> dict[str, tuple[str, Callable[[], object]]]:
    """Return every product of a layer by its name, with what runs; they share their tensors."""
    import torch

    m, k, n = shape
    x, weight, dy = make.constant(m, k), make.constant(n, k), make.constant(m, n)
    total = torch.zeros(n, k, device=make.device, dtype=torch.float32)
    fp32 = torch.float32
    return {
        "forward": ("torch.mm", lambda: torch.mm(x, weight.t())),
        "dgrad": ("torch.mm", lambda: torch.mm(dy, weight)),
        "wgrad": ("torch.mm", lambda: torch.mm(dy.t(), x)),
        "wgrad into fp32": ("torch.mm, out_dtype fp32", lambda: torch.mm(dy.t(), x, out_dtype=fp32)),
        "wgrad added to fp32": (
            "torch.addmm, out_dtype fp32, in place",
            lambda: torch.addmm(total, dy.t(), x, out_dtype=fp32, out=total),
        ),
        "wgrad, then added to fp32": ("torch.mm, torch.add", lambda: total.add_(torch.mm(dy.t(), x))),
    }


def measure(shape: Shape, make: Maker, clock: Clock) -> GradientProducts:
    """Time every product of a layer."""

    def built(kernel: str, run: Callable[[], object]) -> Call:
        return Call(run, (), kernel)

    timed = {
        name: Timed(partial(built, *form), shape, (Direction.FORWARD,), clock, POLICY)
        for name, form in forms(shape, make).items()
    }
    deque(take_turns(list(timed.values())), maxlen=0)
    m, k, n = shape
    passes = tuple(pass_of(name, row) for name, form in timed.items() for row in form.finish())
    return GradientProducts(m=m, k=k, n=n, passes=passes)


def parts(device: Device) -> list[Part]:
    """Return a part per layer and number of tokens."""
    make, clock = Maker(device.kind, PRECISION), clock_for(device, POLICY)
    shapes = [(tokens, *features) for tokens in TOKENS for features in LAYERS]
    return [Part(" ".join(map(str, shape)), PART_S, partial(measure, shape, make, clock)) for shape in shapes]
