"""Lookup frequency of a slot's keys, and the distinct rows of a batch that follow.

HugeCTR's data generator draws keys uniformly or from a power law, p(key) ∝ (key + 1)^-exponent; its long, medium and
short tails have the exponents 1, 3 and 5 (user guide, "Generating Synthetic Data and Benchmarks").
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import exp, expm1, log, log1p

TAILS = {"long": 1.0, "medium": 3.0, "short": 5.0}
EXACT_KEYS = 1024  # the most frequent keys are summed one by one, the rest in geometric ranges
RANGES_PER_OCTAVE = 8
CERTAIN = 7.0  # exp(-exp(7)) is 0 to a float


@dataclass(frozen=True, slots=True)
class KeyDistribution:
    """The distribution of a slot's keys.

    Attributes:
        exponent: of the power law; 0 is uniform.
        follow: a sample's further keys of a slot follow from its first, each first key with the same others; otherwise
            all are drawn independently. MLPerf's multi-hot data is made so (mlcommons/training,
            recommendation_v2/torchrec_dlrm, materialize_synthetic_multihot_dataset.py).
    """

    exponent: float = 0.0
    follow: bool = False

    def touched(self, samples: float, hotness: float, rows: float) -> float:
        """Return the expected number of distinct rows that so many samples of ``hotness`` keys each look up."""
        if not self.follow or hotness <= 1.0:
            return self.distinct(samples * hotness, rows)
        if rows <= 1:
            return self.distinct(samples, rows)
        named = hotness * self.distinct(samples, rows)  # sets lie anywhere, so that some rows are in several
        return -rows * expm1(named * log1p(-1.0 / rows))

    def distinct(self, lookups: float, rows: float) -> float:
        """Return the expected number of distinct rows of ``lookups`` independent draws from ``rows`` keys."""
        if lookups <= 0 or rows <= 0:
            return 0.0
        if rows <= 1:
            return 1.0
        if self.exponent == 0:
            return -rows * expm1(lookups * log1p(-1.0 / rows))
        return _distinct_of_power_law(self.exponent, float(lookups), int(rows))

    def hit_share(self, cached: float, rows: float) -> float:
        """Return the share of lookups that the ``cached`` most frequent of ``rows`` keys answer."""
        if cached <= 0 or rows <= 0:
            return 0.0
        if cached >= rows:
            return 1.0
        if self.exponent == 0:
            return cached / rows
        return _mass_of_part(self.exponent, cached) / _mass_of_part(self.exponent, rows)

    def after(self, log_lookups: float, rows: float) -> tuple[float, float]:
        """Return the distinct rows of so many lookups of a power law's keys, and the share of new ones in the next.

        The number of lookups is given as its logarithm: a steep law touches its last keys after more than a float
        holds.
        """
        whole, log_mass = int(rows), log(_mass_of_part(self.exponent, rows))
        ranges = _ranges(whole) + ([(whole + 1.0, rows - whole)] if rows > whole else [])
        distinct = new = 0.0
        for key, count in ranges:
            log_share = min(-self.exponent * log(key) - log_mass, 0.0)
            missed = _missed(log_lookups, log_share)
            distinct += count * (1.0 - missed)
            new += count * exp(log_share) * missed
        return distinct, new


UNIFORM = KeyDistribution()


def _ranges(rows: int) -> list[tuple[float, float]]:
    """Return (middle key, number of keys) of ranges that cover keys 1 to ``rows``; the first ones hold one key each."""
    head = min(rows, EXACT_KEYS)
    ranges = [(float(key), 1.0) for key in range(1, head + 1)]
    start, ratio = head, 2.0 ** (1.0 / RANGES_PER_OCTAVE)
    while start < rows:
        end = min(rows, max(start + 1, int(start * ratio)))
        ranges.append((((start + 1) * end) ** 0.5, float(end - start)))
        start = end
    return ranges


@lru_cache(maxsize=4096)
def _mass(exponent: float, rows: int) -> float:
    return sum(count * exp(-exponent * log(key)) for key, count in _ranges(rows))


def _mass_of_part(exponent: float, rows: float) -> float:
    """Return the mass of the first keys, the last of them in part."""
    whole = int(rows)
    part = (rows - whole) * exp(-exponent * log(whole + 1.0)) if rows > whole else 0.0
    return _mass(exponent, whole) + part


def _missed(log_lookups: float, log_share: float) -> float:
    """Return the probability that no lookup is of a key with this share."""
    share = exp(log_share)
    if share >= 1.0:
        return 0.0
    # log(1 - share) in place of -share, where they differ
    log_mean = log_lookups + (log(-log1p(-share)) if share > 1e-12 else log_share)
    return 0.0 if log_mean > CERTAIN else exp(-exp(log_mean))


@lru_cache(maxsize=4096)
def _distinct_of_power_law(exponent: float, lookups: float, rows: int) -> float:
    mass = _mass(exponent, rows)
    distinct = 0.0
    for key, count in _ranges(rows):
        share = min(exp(-exponent * log(key)) / mass, 1.0)
        missed = 0.0 if share == 1.0 else exp(lookups * log1p(-share))
        distinct += count * (1.0 - missed)
    return distinct
