"""The busiest rank's tokens where routing is not forced to be even: a prior, with its spread.

Loads of experts scatter around their mean by ``SPREAD``; a rank holds some of them, and all wait for the busiest rank:
1 + z · spread / √held, z the expected largest of as many standard normal variables as there are ranks. Time follows the
busiest rank's tokens, as they are priced: fused experts of eight ranks and fewer under power-law loads take as much
longer on B200 and GB200 as its tokens are more (0.9 to 1.0 of their logarithm; ai-dynamo/aiconfigurator at 095f58a).
"""

from __future__ import annotations

from math import exp, sqrt
from statistics import NormalDist
from typing import NamedTuple

from predictor.core.workload.architecture import MixtureOfExperts
from predictor.core.workload.layout import Layout

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
