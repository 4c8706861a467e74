"""Tokens per expert of a mixture: balanced, or uneven by a power law of a stated exponent.

Measured tables draw each expert's share from a power law, give every expert-parallel rank its neighbours, and time the
busiest rank. Drawn here are DRAWS such mixtures, the same ones every time; their mean is the load.
Source: github.com/ai-dynamo/aiconfigurator, collector/helper.py, power_law_logits_v3 (Apache-2.0).
"""

from __future__ import annotations

from functools import lru_cache
from math import log2
from random import Random
from typing import NamedTuple

EXPONENT_UNIT = 100  # a load of 101 is the exponent 1.01; 0 is balanced
LARGEST_SHARE = 0.8  # of the tokens that an expert may be drawn, before all shares are made to sum to one
DRAWS = 16
SEED = 2101


class ExpertLoad(NamedTuple):
    """Load of the busiest rank, as shares of all choices that tokens make.

    Attributes:
        share: of all experts on this rank.
        shares: of each of them, the largest first.
    """

    share: float
    shares: tuple[float, ...]


def _draw(random: Random, count: int, exponent: float, largest: float) -> list[float]:
    """Return ``count`` samples between 1 and ``largest`` of a density that falls as x^-exponent, scaled to sum to 1."""
    power = 1.0 - exponent
    reach = largest**power - 1.0
    drawn = [(reach * random.random() + 1.0) ** (1.0 / power) for _ in range(count)]
    total = sum(drawn)
    return [x / total for x in drawn]


@lru_cache(maxsize=4096)
def _power_law(experts: int, held: int, exponent: float, largest: float) -> ExpertLoad:
    """Return the mean load of the busiest rank over the draws."""
    random = Random(SEED)
    sums = [0.0] * held
    for _ in range(DRAWS):
        drawn = _draw(random, experts, exponent, largest)
        busiest = max((drawn[first : first + held] for first in range(0, experts, held)), key=sum)
        for place, share in enumerate(sorted(busiest, reverse=True)):
            sums[place] += share
    shares = tuple(x / DRAWS for x in sums)
    return ExpertLoad(sum(shares), shares)


def busiest_rank_load(tokens: int, experts: int, held: int, exponent: int) -> ExpertLoad:
    """Return the load of the busiest of the ranks that hold ``held`` of ``experts`` each.

    Args:
        tokens: of all ranks; the power law ends near their number, which enters by its logarithm only, in octaves.
        experts: of the layer.
        held: on one rank.
        exponent: of the power law, times EXPONENT_UNIT; 0: every expert has the same load.
    """
    if not exponent:
        return ExpertLoad(held / experts, (1.0 / experts,) * held)
    largest = max(2.0, LARGEST_SHARE * 2.0 ** round(log2(max(tokens, 1))))
    return _power_law(experts, held, exponent / EXPONENT_UNIT, largest)
