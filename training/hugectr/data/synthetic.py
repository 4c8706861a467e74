"""Synthetic samples: keys uniform or of a power law, and labels that can be learned.

Labels come from a hidden logistic model: every key and every dense feature has a weight, and a sample's label is 1 with
the probability that its weights give. No model ranks samples better in expectation than these probabilities do, so
their own AUC is the mark to reach.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hugectr.data.samples import Floats, Keys, Lengths, SampleLayout, Samples

HEAD = 65536  # keys whose probabilities are summed one by one; beyond, the power law is integrated
CALIBRATION_SAMPLES = 8192
SIGNAL = 1.6  # standard deviation of the hidden model's logit


class KeySampler:
    """Draws keys from 0 to below ``size`` with p(key) ∝ (key + 1)^-exponent; exponent 0 is uniform.

    Source of the law: HugeCTR's user guide, "Generating Synthetic Data and Benchmarks"; see ``KeyDistribution``.
    """

    def __init__(self, size: int, exponent: float) -> None:
        """Sum the probabilities."""
        self._size, self._exponent = size, exponent
        if exponent:
            head = np.arange(1, min(size, HEAD) + 1, dtype=np.float64) ** -exponent
            self._ends = np.cumsum(head)
            # Ranks beyond the head stand for unit intervals around them: the midpoint rule.
            self._bounds = (head.size + 0.5, size + 0.5)
            self._tail = self._integral(*self._bounds) if size > HEAD else 0.0

    def _integral(self, start: float, end: float) -> float:
        if self._exponent == 1:
            return float(np.log(end / start))
        power = 1 - self._exponent
        return float((end**power - start**power) / power)

    def draw(self, rng: np.random.Generator, count: int) -> Keys:
        """Return so many keys."""
        if not self._exponent:
            return rng.integers(0, self._size, count, dtype=np.int64)
        masses = rng.random(count) * (self._ends[-1] + self._tail)
        keys: Keys = np.searchsorted(self._ends, masses, side="right").astype(np.int64)
        if self._tail:
            beyond = keys >= HEAD
            keys[beyond] = self._in_tail(masses[beyond] - self._ends[-1])
        keys[keys >= self._size] = self._size - 1  # the last bits of the sums
        return keys

    def _in_tail(self, mass: NDArray[np.float64]) -> Keys:
        start = self._bounds[0]
        if self._exponent == 1:
            ranks = start * np.exp(mass)
        else:
            power = 1 - self._exponent
            ranks = (start**power + power * mass) ** (1 / power)
        keys: Keys = np.rint(ranks).astype(np.int64) - 1
        return keys


def _hashed(numbers: NDArray[np.uint64], salt: int) -> NDArray[np.float64]:
    """Return a weight of mean 0 and variance 1 for every number, the same wherever it occurs.

    Source: the finalizer of SplitMix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", 2014).
    """
    mixed = numbers + np.uint64(salt * 0x9E3779B97F4A7C15 % 2**64)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return (mixed.astype(np.float64) / 2**64 - 0.5) * 12**0.5


@dataclass(frozen=True, slots=True)
class SampleKind:
    """What is drawn.

    Attributes:
        layout: of a sample; its sizes of slots are not used.
        sizes: keys of each slot.
        starts: what is added to each slot's keys, so that no two slots share one (Norm); zeros otherwise.
        max_nnz: keys of a slot are 1 to so many, equally often.
        exponent: of the power law of keys.
        counts_dense: dense features are log(1 + whole number), as Raw data hold them.
    """

    layout: SampleLayout
    sizes: tuple[int, ...]
    starts: tuple[int, ...]
    max_nnz: int
    exponent: float
    counts_dense: bool


class Synthesizer:
    """Draws samples; the same numbers for the same seed, part by part."""

    def __init__(self, kind: SampleKind, seed: int) -> None:
        """Set up the hidden model and find its scale."""
        self._kind, self._seed = kind, seed
        self._samplers = [KeySampler(size, kind.exponent) for size in kind.sizes]
        rng = np.random.default_rng([seed, 2])
        raw = self._raw_logits(*self._features(rng, CALIBRATION_SAMPLES))
        self._mean = raw.mean(axis=0)
        spread = raw.std(axis=0)
        self._scale = SIGNAL / np.where(spread > 0, spread, 1.0)

    def draw(self, num_samples: int, *, part: int, is_eval: bool = False) -> tuple[Samples, NDArray[np.float64]]:
        """Return samples of one part of the data, and the logits of their labels."""
        rng = np.random.default_rng([self._seed, int(is_eval), part])
        dense, local, lengths = self._features(rng, num_samples)
        logits = (self._raw_logits(dense, local, lengths) - self._mean) * self._scale
        label = (rng.random(logits.shape) < 1 / (1 + np.exp(-logits))).astype(np.float32)
        starts = np.repeat(np.array(self._kind.starts, np.int64), lengths.sum(axis=1))
        return Samples(label, dense, local + starts, lengths), logits

    def _features(self, rng: np.random.Generator, num_samples: int) -> tuple[Floats, Keys, Lengths]:
        kind = self._kind
        dense = rng.standard_normal((num_samples, kind.layout.dense_dim))
        if kind.counts_dense:
            dense = np.log1p(np.rint(np.expm1(np.maximum(dense + 2, 0))))
        shape = (kind.layout.num_slots, num_samples)
        lengths = rng.integers(1, kind.max_nnz, shape, dtype=np.int32, endpoint=True)
        counts = lengths.sum(axis=1)
        keys = [sampler.draw(rng, int(count)) for sampler, count in zip(self._samplers, counts, strict=True)]
        return dense.astype(np.float32), np.concatenate(keys), lengths

    def _raw_logits(self, dense: Floats, keys: Keys, lengths: Lengths) -> NDArray[np.float64]:
        """Return (samples, label_dim) sums of weights, half of the variance each from dense features and keys."""
        num_slots, num_samples = lengths.shape
        flat = lengths.reshape(-1)
        sample = np.repeat(np.tile(np.arange(num_samples), num_slots), flat)
        slot = np.repeat(np.arange(num_slots, dtype=np.uint64), lengths.sum(axis=1))
        numbers = (slot << np.uint64(48)) + keys.astype(np.uint64)
        columns = []
        for label in range(self._kind.layout.label_dim):
            salt = self._seed * 1000 + 2 * label
            total = np.bincount(sample, _hashed(numbers, salt), num_samples) / num_slots**0.5
            weights = _hashed(np.arange(dense.shape[1], dtype=np.uint64), salt + 1)
            columns.append(total + dense @ weights / max(float(np.linalg.norm(weights)), 1e-9))
        return np.stack(columns, axis=1)


def ranking_auc(scores: NDArray[np.float64], labels: Floats) -> float:
    """Return the share of pairs of a positive and a negative sample that the scores order rightly.

    The scores are all different; 0.5 where one of both kinds is missing.
    """
    order = np.argsort(scores, kind="stable")
    ranks = np.empty(scores.size)
    ranks[order] = np.arange(1, scores.size + 1)
    positive = labels > 0.5
    num_positive, num_negative = int(positive.sum()), int((~positive).sum())
    if not num_positive or not num_negative:
        return 0.5
    above = ranks[positive].sum() - num_positive * (num_positive + 1) / 2
    return float(above / (num_positive * num_negative))
