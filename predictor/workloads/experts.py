"""A mixture of experts in place of a layer's FFN: router, exchange of tokens, experts, shared experts.

Every rank of the expert-parallel group holds some of the experts and sees its own tokens, so tokens travel to their
experts and back. The tokens of the busiest rank set the time of all.
"""

from __future__ import annotations

from math import ceil

from predictor.costs.layer_call import LayerCall
from predictor.costs.operator import Direction
from predictor.workloads.layout import Layout
from predictor.workloads.tasks import Part, Task, collective_task, shaped_task, stream_task
from predictor.workloads.transformer import MixtureOfExperts, Transformer

# Bytes per router score: softmax and top-k read and write it in fp32.
SCORE_BYTES = 4 * 4
# Softmax, top-k, histogram, sort and the index kernels around them.
ROUTER_LAUNCHES = 10
# Tokens are copied into the order of their experts and, weighted, back: a read and a write each.
PERMUTATION_PASSES = 2 * 2


def routed_tokens(experts: MixtureOfExperts, call: LayerCall) -> float:
    """Return the tokens that the busiest rank's experts see: as many as it sends where the load is even."""
    return call.tokens * experts.experts_per_token * experts.busiest


def _ffn(shape: tuple[int, int, int], gated: bool, direction: Direction, times: float) -> list[Task]:
    """Return one FFN of (tokens, hidden, width), so many times over."""
    tokens, hidden, width = shape
    return [
        shaped_task("ffn_up", (tokens, hidden, width * (2 if gated else 1)), direction, times),
        shaped_task("swiglu" if gated else "gelu", (tokens, width), direction, times),
        shaped_task("ffn_down", (tokens, width, hidden), direction, times),
    ]


def expert_tasks(model: Transformer, call: LayerCall, direction: Direction, layout: Layout) -> list[Task]:
    """Return what a layer with experts runs instead of its FFN, the exchange of tokens included.

    Source: Lepikhin et al. 2020, arXiv:2006.16668; Megatron-LM core/transformer/moe (all-to-all dispatcher).
    """
    experts = model.experts
    assert experts is not None
    tp, gated = call.tensor_parallel_size, model.activation.gated
    held = experts.num_experts // layout.expert_parallel_size
    routed = routed_tokens(experts, call)
    per_expert = max(1, ceil(routed / held))
    tasks = [shaped_task("ffn_up", (call.tokens, call.hidden_size, experts.num_experts), direction)]
    tasks += _ffn((per_expert, call.hidden_size, experts.expert_ffn_hidden_size // tp), gated, direction, held)
    if experts.shared_expert_ffn_hidden_size:
        shared = experts.shared_expert_ffn_hidden_size // tp
        tasks += _ffn((call.tokens, call.hidden_size, shared), gated, direction, 1.0)
    scores = call.tokens * experts.num_experts * SCORE_BYTES
    tasks.append(stream_task("router", scores, call, launches=ROUTER_LAUNCHES))
    moved = routed * call.hidden_size * call.element_bytes
    tasks.append(stream_task("token_permutation", moved * PERMUTATION_PASSES, call, launches=4))
    return tasks + exchange_tasks(experts, call, layout)


def exchange_tasks(experts: MixtureOfExperts, call: LayerCall, layout: Layout) -> list[Task]:
    """Return the two all-to-alls of one pass: tokens to their experts, and what the experts made of them back."""
    sent = call.unsplit_tokens * experts.experts_per_token * experts.busiest * call.hidden_size * call.element_bytes
    return collective_task("all_to_all", sent, layout.expert_group(), Part.EXPERT_PARALLEL, 2)
