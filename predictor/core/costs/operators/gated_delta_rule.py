"""The recurrence of a gated delta layer in chunks: a triangular system inside each, states from chunk to chunk.

Where it was not measured, it takes OVER_ROOFLINE times as long as its FLOPs or its bytes at measured rates: kernels one
after the other that invert small systems. Chunks follow one another, so that few samples and heads leave
multiprocessors idle; the interval allows for it.
"""

from math import ceil, log

from predictor.core.costs.operator import Direction, Operator, Shape, StandIn
from predictor.core.costs.roofline import roofline
from predictor.core.costs.work import ELEMENT_BYTES, Work

# Written and read for every chunk: its state, and the two factors of its corrected keys and values.
INTERMEDIATE_PASSES = 2
# Flash-linear-attention's Triton kernels over ``roofline``, medians of 4,096 tokens and more: 1.9 on H100, 2.4 on H200,
# 3.2 to 3.6 on B200, GB200, B300 and GB300, 1.7 on L40S, 1.3 on RTX PRO 6000. Source: ai-dynamo/aiconfigurator at
# 095f58a, TensorRT-LLM 1.3.0rc20.
OVER_ROOFLINE, LOG_ERROR = 2.0, log(1.8)
# Of the same kernels: 2.9 to 3.1 with 8 to 32 heads of 8,192 and 32,768 tokens on H200 (FLA 0.5.1; QwenLM/FlashQLA,
# benchmark/benchmark_results_H200.txt), 2.5 to 2.6 on Hopper (NVIDIA/Megatron-LM, pull request 5564).
BACKWARD_OVER_FORWARD, RATIO_LOG_ERROR = 3.0, 0.2


def _flops(shape: Shape, direction: Direction) -> tuple[float, float]:
    """Return the FLOPs of the products that outputs and states need, and those of kernels that invert the systems.

    Backward each product becomes two, and the factors of corrected keys and values are computed again.
    Source: Yang et al. 2024, section 3.3 (chunkwise form); fla-org/flash-linear-attention,
    fla/ops/gated_delta_rule/chunk.py.
    """
    batch, length, heads, keys, values, chunk = shape
    tokens, inside = float(batch * length * heads), min(chunk, length)
    chunks = ceil(length / chunk)
    states = (
        3 * 2.0 * keys * values * (chunks - 1) / chunks
    )  # none is there before the first, none needed after the last
    needed = 2.0 * inside * (2 * keys + values) + states
    factors = inside * inside + 2.0 * inside * (keys + values)
    if direction is Direction.FORWARD:
        return tokens * needed, tokens * (needed + factors)
    return tokens * 2.0 * needed, tokens * (2.0 * needed + 3.0 * factors + 2.0 * inside * keys)


def _intermediate_bytes(shape: Shape, direction: Direction) -> float:
    """Return the bytes of states and factors that the kernels, one after the other, write and read."""
    batch, length, heads, keys, values, chunk = shape
    states = batch * ceil(length / chunk) * heads * keys * values
    factors = batch * length * heads * (keys + values + chunk)
    size_bytes = float((states + factors) * ELEMENT_BYTES * INTERMEDIATE_PASSES)
    return size_bytes if direction is Direction.FORWARD else 2.0 * size_bytes


def _work(shape: Shape, direction: Direction, num_multiprocessors: int) -> Work:
    """Queries, keys, values, gates and strengths are read, outputs written; backward their gradients too.

    ``extras``: FLOPs of all products that kernels compute; bytes of states and factors between kernels.
    """
    batch, length, heads, keys, values, _ = shape
    passes = 1 if direction is Direction.FORWARD else 2
    size_bytes = float(passes * batch * length * heads * (2 * keys + 2 * values + 2) * ELEMENT_BYTES)
    needed, computed = _flops(shape, direction)
    return Work(needed, size_bytes, (computed, _intermediate_bytes(shape, direction)))


def _stand_in(shape: Shape, direction: Direction, num_multiprocessors: int) -> StandIn:
    """Products of attention's scores and values with as many FLOPs, or a stream of as many bytes."""
    batch, length, heads, _, values, chunk = shape
    work = _work(shape, direction, num_multiprocessors)
    inside = min(chunk, length)
    product = (batch * heads * ceil(length / chunk), inside, inside, values)
    least = roofline(work.extras[0], work.size_bytes + work.extras[1], product, LOG_ERROR)
    return least._replace(times=OVER_ROOFLINE * least.times)


OPERATOR = Operator(
    name="gated_delta_rule",
    dimensions=("batch", "sequence", "heads", "key_dim", "value_dim", "chunk"),
    work=_work,
    extra_kinds=("flops", "bytes"),
    launches=(6, 12),
    stand_in=_stand_in,
    backward_ratio=(BACKWARD_OVER_FORWARD, RATIO_LOG_ERROR),
    source="Yang et al. 2024, arXiv:2412.06464",
)
