"""The experts of one rank: tokens gathered by expert, two products for each, outputs weighted and added per token."""

from __future__ import annotations

from microbench.call import Call, Maker, Tensor
from predictor.core.costs.expert_load import busiest_rank_load
from predictor.core.costs.layer_call import LayerCall
from predictor.core.costs.operator import Shape

# A small mixture: eight experts and two choices a token, all on one rank. Source: Jiang et al. 2024, arXiv:2401.04088.
EXPERTS, CHOICES = 8, 2
BALANCED = 0
RARE = True


def drawn(call: LayerCall) -> Shape:
    """Return the shape in a layer of a sweep."""
    sizes = call.tokens, call.hidden_size, call.ffn_width
    return *sizes, CHOICES, EXPERTS, EXPERTS, BALANCED, int(call.gated)


def rows_per_expert(shape: Shape) -> list[int]:
    """Return how many tokens chose each expert of the rank; a token chooses an expert once."""
    tokens, _, _, top_k, experts, held, exponent, _ = shape
    shares = busiest_rank_load(tokens, experts, held, exponent).shares
    return [min(tokens, round(tokens * top_k * share)) for share in shares]


def build(shape: Shape, make: Maker) -> Call:
    """Return the call of shape (tokens, hidden, inner, top_k, experts, held, load, gated)."""
    import torch
    from torch.nn.functional import relu, silu

    tokens, hidden, inner, _, _, _, _, gated = shape
    counts = rows_per_expert(shape)
    x = make.activation(tokens, hidden)
    ups = [make.weight(hidden, inner * (2 if gated else 1)) for _ in counts]
    downs = [make.weight(inner, hidden) for _ in counts]
    chosen = [make.ids(count, tokens) for count in counts]
    weights = make.constant(tokens, 1)

    def expert(rows: Tensor, up: Tensor, down: Tensor) -> Tensor:
        inside = rows @ up
        if gated:
            gate, value = inside.chunk(2, dim=-1)
            return silu(gate) * value @ down
        return relu(inside).square() @ down

    def forward() -> Tensor:
        total = torch.zeros_like(x)
        for index, up, down in zip(chosen, ups, downs, strict=True):
            total = total.index_add(0, index, expert(x[index], up, down) * weights[index])
        return total

    return Call(forward, (x, *ups, *downs), "torch: a product per expert, index and index_add")
