"""A mixture of experts in place of a layer's FFN: router, exchange of tokens, experts, shared experts.

Every rank of the expert-parallel group holds some of the experts and sees its own tokens, so tokens travel to their
experts and back. The tokens of the busiest rank set the time of all.
"""

from __future__ import annotations

from math import ceil

from predictor.costs.operator import Direction
from predictor.workloads.expert_ranks import expert_tokens
from predictor.workloads.layer_call import LayerCall
from predictor.workloads.layout import Layout
from predictor.workloads.tasks import BACKWARD, Part, Task, collective_task, shaped_task, stream_task
from predictor.workloads.transformer import MixtureOfExperts, Transformer

# Reads and writes per element of a fused SwiGLU: forward both halves and the product; backward those and the gradients.
FUSED_GATE_PASSES = (3, 5)
# Bytes per router score: softmax and top-k read and write it in fp32.
SCORE_BYTES = 4 * 4
# Softmax, top-k, histogram, sort and the index kernels around them.
ROUTER_LAUNCHES = 10
# Tokens are copied into the order of their experts and, weighted, back: a read and a write each.
PERMUTATION_PASSES = 2 * 2


def busiest(experts: MixtureOfExperts, layout: Layout) -> float:
    """Return the tokens of the busiest rank over the even share.

    A capacity pads or cuts every expert to its own. Where every rank has all experts no rank can be busier than
    another, and where it has 1/ep of them not more than ep times as busy as on average.
    """
    if experts.capacity_factor is not None:
        return experts.capacity_factor
    return min(experts.load_imbalance, float(layout.expert_parallel_size))


def routed_share(experts: MixtureOfExperts, layout: Layout) -> float:
    """Return how many tokens the busiest rank's experts see for each token that a rank has."""
    return experts.experts_per_token * busiest(experts, layout)


def routed_tokens(experts: MixtureOfExperts, call: LayerCall, layout: Layout) -> float:
    """Return the tokens that the busiest rank's experts see: as many as it sends where the load is even."""
    return expert_tokens(call, layout) * routed_share(experts, layout)


def _ffn(
    model: Transformer, call: LayerCall, shape: tuple[int, int, int], direction: Direction, times: float
) -> list[Task]:
    """Return one FFN of (tokens, hidden, width), so many times over."""
    tokens, hidden, width = shape
    gated = model.activation.gated
    if gated and model.fused_side_kernels:
        size_bytes = tokens * width * FUSED_GATE_PASSES[direction is BACKWARD] * call.element_bytes
        activation = stream_task("fused_gate", size_bytes * times, call, launches=times)
    else:
        activation = shaped_task("swiglu" if gated else "gelu", (tokens, width), direction, times)
    return [
        shaped_task("ffn_up", (tokens, hidden, width * (2 if gated else 1)), direction, times),
        activation,
        shaped_task("ffn_down", (tokens, width, hidden), direction, times),
    ]


def shared_expert_tasks(model: Transformer, call: LayerCall, direction: Direction) -> list[Task]:
    """Return the FFN of the experts that all tokens visit; none without them."""
    experts = model.experts
    if experts is None or not experts.shared_expert_ffn_hidden_size:
        return []
    shared = experts.shared_expert_ffn_hidden_size // call.tensor_parallel_size
    return _ffn(model, call, (call.tokens, call.hidden_size, shared), direction, 1.0)


def expert_tasks(model: Transformer, call: LayerCall, direction: Direction, layout: Layout) -> list[Task]:
    """Return what a layer with experts runs instead of its FFN, the exchange of tokens included.

    Source: Lepikhin et al. 2020, arXiv:2006.16668; Megatron-LM core/transformer/moe (all-to-all dispatcher).
    """
    experts = model.experts
    assert experts is not None
    held = experts.num_experts // layout.expert_parallel_size
    routed = routed_tokens(experts, call, layout)
    per_expert = max(1, ceil(routed / held))
    scored = (call.unsplit_tokens, call.hidden_size, experts.num_experts)
    tasks = [shaped_task("ffn_up", scored, direction)._replace(name="router_projection")]
    width = experts.expert_ffn_hidden_size // layout.expert_split
    tasks += _ffn(model, call, (per_expert, call.hidden_size, width), direction, held)
    tasks += shared_expert_tasks(model, call, direction)
    scores = call.unsplit_tokens * experts.num_experts * SCORE_BYTES
    tasks.append(stream_task("router", scores, call, launches=ROUTER_LAUNCHES))
    moved = routed * call.hidden_size * call.element_bytes
    tasks.append(stream_task("token_permutation", moved * PERMUTATION_PASSES, call, launches=4))
    return tasks + exchange_tasks(experts, call, layout)


def exchange_tasks(experts: MixtureOfExperts, call: LayerCall, layout: Layout) -> list[Task]:
    """Return the two all-to-alls of one pass: tokens to their experts, outputs back."""
    sent = call.unsplit_tokens * routed_share(experts, layout) * call.hidden_size * call.element_bytes
    return collective_task("all_to_all", sent, layout.expert_group(), Part.EXPERT_PARALLEL, 2)
