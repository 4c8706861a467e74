"""The scan of a Mamba-2 layer in chunks: products inside a chunk, states from chunk to chunk (state-space duality).

Where it was not measured, a gated delta rule of as many heads, states and tokens stands in: another scan in chunks
whose kernels write and read what lies between them.
"""

from math import ceil, log

from predictor.core.costs.operator import Direction, Operator, Shape, StandIn
from predictor.core.costs.work import ELEMENT_BYTES, Work

STATE_BYTES = 4  # states between chunks are in fp32
# Written and read for every chunk: its own state, and the one that all earlier ones add up to.
STATE_PASSES = 4
# Time over that of the delta rule in chunks of 64, on B200: 0.61 to 0.77, median 0.67, of 64 to 256 heads in chunks of
# 128 (Triton kernels of state-spaces/mamba, flash-linear-attention; ai-dynamo/aiconfigurator at 095f58a). One GPU and
# one chunk tell little of others.
OVER_DELTA_RULE, DELTA_CHUNK, LOG_ERROR = 0.67, 64, log(1.4)
# Of flash-linear-attention's kernels with one decay a head, which is the same recurrence, of 8,192 tokens and more: 3.0
# to 3.6 on B200, 2.2 to 2.9 on H100 (pytorch/helion at fea89d2, examples/fla/BENCHMARKS.md: simple_gla, retention).
BACKWARD_OVER_FORWARD, RATIO_LOG_ERROR = 3.0, 0.25


def _flops(shape: Shape, direction: Direction) -> tuple[float, float]:
    """Return the FLOPs of the products that outputs need, and those of kernels that keep nothing between passes.

    Backward each product becomes two, and the kernels compute states and scores again.
    Source: Dao & Gu 2024, section 6 (the four steps of the block decomposition); state-spaces/mamba,
    mamba_ssm/ops/triton/ssd_combined.py.
    """
    batch, length, heads, width, state, groups, chunk = shape
    tokens, inside, chunks = float(batch * length), min(chunk, length), ceil(length / chunk)
    scores = 2.0 * inside * state * groups
    states = 2.0 * state * width * heads
    # No state is there before the first chunk, and none is needed after the last.
    needed = scores + 2.0 * inside * width * heads + 2.0 * states * (chunks - 1) / chunks
    if direction is Direction.FORWARD:
        return tokens * needed, tokens * needed
    return tokens * 2.0 * needed, tokens * (2.0 * needed + scores + states)


def _state_bytes(shape: Shape, direction: Direction) -> float:
    """Return the bytes of states that the kernels, one after the other, write and read."""
    batch, length, heads, width, state, _, chunk = shape
    size_bytes = float(batch * ceil(length / chunk) * heads * width * state * STATE_BYTES * STATE_PASSES)
    return size_bytes if direction is Direction.FORWARD else 2.0 * size_bytes


def _work(shape: Shape, direction: Direction, num_multiprocessors: int) -> Work:
    """Values, B, C and step sizes are read, values written; backward their gradients too.

    ``extras``: FLOPs of all products that kernels compute; bytes of the states between chunks.
    """
    batch, length, heads, width, state, groups, _ = shape
    ends = 2 * heads * width + 2 * groups * state + heads
    passes = 1 if direction is Direction.FORWARD else 2
    size_bytes = float(passes * batch * length * ends * ELEMENT_BYTES)
    needed, computed = _flops(shape, direction)
    return Work(needed, size_bytes, (computed, _state_bytes(shape, direction)))


def _stand_in(shape: Shape, direction: Direction, num_multiprocessors: int) -> StandIn:
    """A gated delta rule whose keys are as wide as the state."""
    batch, length, heads, width, state, _, _ = shape
    return StandIn("gated_delta_rule", (batch, length, heads, state, width, DELTA_CHUNK), OVER_DELTA_RULE, LOG_ERROR)


OPERATOR = Operator(
    name="ssd_scan",
    dimensions=("batch", "sequence", "heads", "width", "state", "groups", "chunk"),
    work=_work,
    extra_kinds=("flops", "bytes"),
    launches=(5, 10),
    stand_in=_stand_in,
    backward_ratio=(BACKWARD_OVER_FORWARD, RATIO_LOG_ERROR),
    source="Dao & Gu 2024, arXiv:2405.21060",
)
