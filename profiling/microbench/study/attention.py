"""Attention kernels beside each other: torch's backends on the same shapes, forward and backward apart.

The backends of one shape take turns, so that a change of the clock is shared by all. Each is forced: a shape that it
does not support is a failed pass with torch's reason, and never another kernel.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from microbench.call import Call, Maker, Tensor
from microbench.clocks import Clock
from microbench.device import Device
from microbench.study.part import Part
from microbench.study.record import Attention, pass_of
from microbench.timing import Policy, Timed, clock_for, take_turns
from predictor.core.costs.operator import BOTH, Shape

PRECISION = "bf16"
# Names in torch.nn.attention.SDPBackend.
BACKENDS = {"flash": "FLASH_ATTENTION", "cudnn": "CUDNN_ATTENTION", "efficient": "EFFICIENT_ATTENTION"}
POLICY = Policy(precision=0.02, fewest_samples=5, most_samples=20, budget_ms=250.0, warmup_ms=150.0)
PART_S = 6.0  # the largest shape with a backend three times as slow as FlashAttention 2
# Of one rank: heads, key-value heads, head width.
HEADS = (
    (32, 8, 128),  # Llama 3 8B
    (8, 2, 128),  # the same, tensor parallel 4
    (64, 8, 128),  # Llama 3 70B
    (8, 1, 128),  # the same, tensor parallel 8
    (32, 32, 128),  # Llama 2 7B
    (5, 5, 128),  # Llama 2 13B, tensor parallel 8
    (28, 4, 128),  # Qwen 2 7B
    (16, 8, 256),  # Gemma 2 9B
    (16, 16, 64),  # GPT-2 medium
    (12, 12, 64),  # GPT-2
)
SIZES = ((8, 1024), (4, 2048), (2, 4096), (1, 8192), (1, 16384))  # batch, tokens of a sequence
# Encoders and diffusion transformers: batch, tokens, heads, key-value heads, head width.
BIDIRECTIONAL = (
    (64, 128, 12, 12, 64), (32, 512, 12, 12, 64), (64, 512, 16, 16, 64), (128, 197, 12, 12, 64), (64, 257, 16, 16, 80),
    (16, 1024, 16, 16, 72), (4, 4096, 24, 24, 64), (2, 4096, 24, 24, 128), (1, 8192, 24, 24, 128),
    (8, 1024, 32, 32, 128),
)  # fmt: skip
# Between shapes that follow each other: a study that is cut off has seen small and large ones of many models.
STRIDE = 7


def shapes() -> list[Shape]:
    """Return the 60 shapes (batch, sequence, heads, kv_heads, head_dim, causal), those far apart first."""
    causal = [(batch, length, *heads, 1) for batch, length in SIZES for heads in HEADS]
    known = [*causal, *((*sizes, 0) for sizes in BIDIRECTIONAL)]
    return [known[i] for start in range(STRIDE) for i in range(start, len(known), STRIDE)]


def call(shape: Shape, backend: str, make: Maker) -> Call:
    """Return attention by one backend, inputs laid out (batch, sequence, heads, width) as projections leave them.

    The memory-efficient backend takes no shared key-value heads: they are repeated, as models do for it, in the pass.
    """
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    batch, length, heads, kv_heads, width, causal = shape
    inputs = tuple(make.activation(batch, length, count, width) for count in (heads, kv_heads, kv_heads))
    queries, *shared = (x.transpose(1, 2) for x in inputs)
    group, chosen = heads // kv_heads, getattr(SDPBackend, backend)
    repeats = group > 1 and backend == "EFFICIENT_ATTENTION"

    def forward() -> Tensor:
        keys, values = (x.repeat_interleave(group, dim=1) for x in shared) if repeats else shared
        with sdpa_kernel(chosen):
            return scaled_dot_product_attention(
                queries, keys, values, is_causal=bool(causal), enable_gqa=group > 1 and not repeats
            )

    return Call(forward, inputs, f"torch {backend}" + (", key-value heads repeated" if repeats else ""))


def measure(shape: Shape, make: Maker, clock: Clock) -> Attention:
    """Time every backend on a shape."""
    timed = {
        name: Timed(partial(call, shape, backend, make), shape, BOTH, clock, POLICY)
        for name, backend in BACKENDS.items()
    }
    deque(take_turns(list(timed.values())), maxlen=0)
    passes = tuple(pass_of(name, row) for name, backend in timed.items() for row in backend.finish())
    batch, length, heads, kv_heads, width, causal = shape
    return Attention(
        batch=batch,
        sequence=length,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=width,
        causal=bool(causal),
        passes=passes,
    )


def parts(device: Device) -> list[Part]:
    """Return a part per shape."""
    make, clock = Maker(device.kind, PRECISION), clock_for(device, POLICY)

    def part(shape: Shape) -> Callable[[], Attention]:
        return lambda: measure(shape, make, clock)

    return [Part(" ".join(map(str, shape)), PART_S, part(shape)) for shape in shapes()]
