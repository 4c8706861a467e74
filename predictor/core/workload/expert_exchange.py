"""Tokens on their way to their experts and back, by the dispatcher that moves them.

``all_to_all`` sends a copy of a token for each of its experts. ``deepep`` and ``hybridep`` send one copy to each rank
that holds any of them, and between nodes one copy to each node, which its ranks pass on over NVLink while the next
arrives; on the way back a rank adds up what its experts made of a token before it sends the sum. ``all_gather`` brings
all tokens to all ranks and scatters the sums. DeepEP's copies are timed by its own tables, with the 20 multiprocessors
that Megatron-LM gives it (--moe-deepep-num-sms, and DeepEP's Buffer.num_sms). HybridEP's, of NVLink as of the network,
are priced as NCCL's collectives of the same bytes: its own table has 0.97 to 1.2 times the rate of NCCL's all-to-all
inside a node of eight B200 (735 and 674 GB/s, bf16; deepseek-ai/DeepEP, docs/README_Hybrid-EP.md).
Source: Megatron-LM core/transformer/moe/token_dispatcher.py and fused_a2a.py; DeepSeek-AI 2024, arXiv:2412.19437,
section 3.2.2.

Loads of experts scatter around their mean by ``SPREAD``; a rank holds some of them, and all wait for the busiest rank:
1 + z · spread / √held, z the expected largest of as many standard normal variables as there are ranks. Time follows the
busiest rank's tokens, as they are priced: fused experts of eight ranks and fewer under power-law loads take as much
longer on B200 and GB200 as its tokens are more (0.9 to 1.0 of their logarithm; ai-dynamo/aiconfigurator at 095f58a).
"""

from __future__ import annotations

from enum import StrEnum
from math import exp, prod, sqrt
from statistics import NormalDist
from typing import NamedTuple

from predictor.core.costs.collectives import DEEPEP
from predictor.core.costs.layer_call import LayerCall
from predictor.core.workload.architecture import MixtureOfExperts
from predictor.core.workload.layout import Layout
from predictor.core.workload.tasks import Part, Task, collective_task

# Standard deviation of experts' loads over their mean. The loss that balances them is about 1 + its square. Trained
# with it: 1.0 to 1.2 (mlc-ai/pith-train, issue 79), so at most 0.45; the busiest of 64 experts 0.72 and 0.52 above the
# mean, so 0.31 and 0.22 (Wang et al. 2024, arXiv:2408.15664, table 2, two sizes). Without it, or before it took effect:
# 1.87, so 0.93 (issue 79). The geometric mean of the ends, 0.22 and 0.93; the interval reaches from one to the other.
SPREAD, SPREAD_LOG_ERROR = 0.45, 0.72


class Imbalance(NamedTuple):
    """Tokens of the busiest rank over the even share: likely, and the ends of a 90 % interval."""

    value: float
    low: float
    high: float


EVEN = Imbalance(1.0, 1.0, 1.0)


def expected_largest(count: int) -> float:
    """Return the expected largest of so many standard normal variables.

    Source: Blom 1958, "Statistical Estimates and Transformed Beta-Variables": the quantile of (n − 3/8) ÷ (n + 1/4).

    >>> round(expected_largest(8), 2), round(expected_largest(64), 2)
    (1.43, 2.34)
    """
    return max(0.0, NormalDist().inv_cdf((count - 0.375) / (count + 0.25)))


def prior_imbalance(experts: MixtureOfExperts, layout: Layout) -> Imbalance:
    """Return the imbalance of natural routing; even where a capacity evens it, or one rank holds all experts.

    >>> layout = Layout(1, 1, 8, gpus_per_node=8, expert_parallel_size=8)
    >>> tuple(round(x, 2) for x in prior_imbalance(MixtureOfExperts(128, 8, 768), layout))
    (1.16, 1.08, 1.33)
    """
    ranks = layout.expert_parallel_size
    if ranks == 1 or experts.capacity_factor is not None:
        return EVEN
    above = expected_largest(ranks) * SPREAD / sqrt(experts.num_experts / ranks)
    value, low, high = (min(float(ranks), 1.0 + above * exp(sign * SPREAD_LOG_ERROR)) for sign in (0.0, -1.0, 1.0))
    return Imbalance(value, low, high)


class ExpertDispatcher(StrEnum):
    """How tokens travel between expert-parallel ranks (Megatron-LM's --moe-token-dispatcher-type)."""

    ALL_TO_ALL = "all_to_all"
    ALL_GATHER = "all_gather"
    DEEPEP = "deepep"
    HYBRIDEP = "hybridep"

    @property
    def sends_one_copy(self) -> bool:
        """Return whether a token travels once to a rank, however many of its experts are there."""
        return self in (ExpertDispatcher.DEEPEP, ExpertDispatcher.HYBRIDEP)


def visited(experts: MixtureOfExperts, groups: int) -> float:
    """Return in how many of equal groups of experts a token's choices lie, on average over all choices.

    >>> round(visited(MixtureOfExperts(128, 8, 768), groups=8), 2)
    5.35
    """
    held = experts.num_experts / groups
    none_here = prod(max(0.0, 1.0 - held / (experts.num_experts - i)) for i in range(experts.experts_per_token))
    return groups * (1.0 - none_here)


def busiest(experts: MixtureOfExperts, layout: Layout) -> float:
    """Return the tokens of the busiest rank over the even share.

    A capacity pads or cuts every expert to its own. Where every rank has all experts no rank can be busier than
    another, and where it has 1/ep of them not more than ep times as busy as on average. Of natural routing, whose
    imbalance nobody gave, it is the likely one.
    """
    if experts.capacity_factor is not None:
        return experts.capacity_factor
    if experts.load_imbalance is None:
        return prior_imbalance(experts, layout).value
    return min(experts.load_imbalance, float(layout.expert_parallel_size))


def routed_share(experts: MixtureOfExperts, layout: Layout) -> float:
    """Return how many tokens the busiest rank's experts see for each token that a rank has."""
    return experts.experts_per_token * busiest(experts, layout)


def received_share(experts: MixtureOfExperts, layout: Layout, dispatcher: ExpertDispatcher) -> float:
    """Return how many rows arrive on the busiest rank for each token that a rank has."""
    if dispatcher is ExpertDispatcher.ALL_GATHER:
        return float(layout.expert_parallel_size)
    if dispatcher.sends_one_copy:
        return visited(experts, layout.expert_parallel_size) * busiest(experts, layout)
    return routed_share(experts, layout)


def gathered_sums(experts: MixtureOfExperts, layout: Layout, dispatcher: ExpertDispatcher) -> float:
    """Return the tensor-parallel sums of routed tokens of a pass, in activations' worth of tokens."""
    if dispatcher is ExpertDispatcher.ALL_GATHER:
        return float(layout.expert_parallel_size)
    return routed_share(experts, layout)


def exchange_tasks(
    experts: MixtureOfExperts, call: LayerCall, layout: Layout, dispatcher: ExpertDispatcher
) -> list[Task]:
    """Return the traffic of one pass: tokens to their experts, outputs back; backward the same in turn."""
    group = layout.expert_group()
    own = call.unsplit_tokens * experts.token_width(call.hidden_size) * call.element_bytes
    if dispatcher is ExpertDispatcher.ALL_GATHER:
        return [
            *collective_task("all_gather", own, group, Part.EXPERT_PARALLEL),
            *collective_task("reduce_scatter", own, group, Part.EXPERT_PARALLEL),
        ]
    copies = routed_share(experts, layout)
    if dispatcher.sends_one_copy:
        places = group.nodes if group.nodes > 1 else group.ranks
        copies = visited(experts, places) * busiest(experts, layout)
    name = DEEPEP if dispatcher is ExpertDispatcher.DEEPEP else "all_to_all"
    return collective_task(name, own * copies, group, Part.EXPERT_PARALLEL, 2)
