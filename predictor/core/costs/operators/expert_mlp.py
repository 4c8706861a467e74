"""The MLPs of the experts on one rank in one fused call: tokens to their experts, two products each, weighted back.

``tokens`` are those of all ranks that share the experts; a rank computes the choices that fall on the ``held`` experts
of its own. ``inner`` is an expert's inner width on this rank. ``load`` is how uneven the experts are chosen, see
``expert_load``; ``gated`` is 1 where the first product makes a gate as well (SwiGLU).
"""

from math import ceil

from predictor.core.costs.expert_load import busiest_rank_load
from predictor.core.costs.operator import Direction, Operator, Shape, StandIn
from predictor.core.costs.work import BLACKWELL_PRECISIONS, ELEMENT_BYTES, FP8_PRECISIONS, Work, whole_waves

# Rows of an expert that a thread block computes at once. Source: vLLM, fused_moe.py (BLOCK_SIZE_M of 16 to 128);
# CUTLASS's grouped GEMM on Hopper and Blackwell, tiles of 128 rows.
SMALL_ROWS, LARGE_ROWS = 32, 128
TILE_COLUMNS = 128


def _matrices(gated: int) -> int:
    """Return how many matrices of (hidden, inner) an expert has."""
    return 3 if gated else 2


def _work(shape: Shape, direction: Direction, num_multiprocessors: int) -> Work:
    """2·hidden·inner FLOP per matrix and choice of a token; backward twice that.

    ``extras``: FLOPs with each expert's rows rounded up to small and to large blocks; the latter in whole waves; bytes
    of the weights; bytes of all choices' activations, which are sorted by expert and summed per token; choices.
    """
    tokens, hidden, inner, top_k, experts, held, exponent, gated = shape
    load = busiest_rank_load(tokens, experts, held, exponent)
    choices = float(tokens * top_k)
    rows = choices * load.share
    passes = 1.0 if direction is Direction.FORWARD else 2.0
    per_row = 2.0 * _matrices(gated) * hidden * inner * passes
    small, large = (
        sum(ceil(choices * share / block - 1e-9) * block for share in load.shares) for block in (SMALL_ROWS, LARGE_ROWS)
    )
    blocks = large // LARGE_ROWS * ceil(hidden / TILE_COLUMNS)
    waves = whole_waves(int(blocks), num_multiprocessors) / max(blocks, 1)
    used = sum(min(1.0, choices * share) for share in load.shares)
    weights = float(ELEMENT_BYTES) * used * _matrices(gated) * hidden * inner * passes
    ends = float(ELEMENT_BYTES) * 2.0 * tokens * min(1.0, top_k * load.share) * hidden * passes
    moved = float(ELEMENT_BYTES) * 2.0 * rows * (hidden + inner) * passes
    extras = (small * per_row, large * per_row, large * waves * per_row, weights, moved, choices)
    return Work(rows * per_row, weights + ends, extras)


def _stand_in(shape: Shape, direction: Direction, num_multiprocessors: int) -> StandIn:
    """An up-projection of one expert's even share of rows, in proportion to the FLOPs of all experts' products."""
    tokens, hidden, inner, top_k, experts, held, exponent, gated = shape
    rows = max(1, ceil(tokens * top_k * busiest_rank_load(tokens, experts, held, exponent).share / held))
    columns = inner * (2 if gated else 1)
    return StandIn("ffn_up", (rows, hidden, columns), held * _matrices(gated) / (2.0 if gated else 1.0))


OPERATOR = Operator(
    name="expert_mlp",
    dimensions=("tokens", "hidden", "inner", "top_k", "experts", "held", "load", "gated"),
    work=_work,
    extra_kinds=("flops", "flops", "flops", "bytes", "bytes", "count"),
    launches=(6, 12),
    tabled_in=(*FP8_PRECISIONS, *BLACKWELL_PRECISIONS),
    stand_in=_stand_in,
    source="Shazeer et al. 2017, arXiv:1701.06538; Gale et al. 2022, arXiv:2211.15841 (grouped products)",
)
