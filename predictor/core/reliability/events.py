"""Numbers of events and sums of their costs: in the mean, and drawn with a stream of random numbers for each cause."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from math import exp, floor, inf, sqrt
from random import Random

from predictor.core.reliability.interruptions import Moments

MANY = 30.0  # a Poisson number of more is drawn from a normal distribution


class Chance(IntEnum):
    """What is drawn; each has its own stream, so that a change to one leaves the draws of the others as they are."""

    CLUSTER = 0
    FAILURES = 1
    LOST = 2
    STOPS = 3
    ROLLBACKS = 4
    PLANNED = 5
    PLANNED_HOURS = 6
    WAITS = 7
    WAITING_HOURS = 8


class MeanEvents:
    """Events as they are in the mean."""

    def count(self, cause: Chance, mean: float, tries: float = inf) -> float:
        """Return the number of events of a mean, geometric in each of so many tries (infinitely many: Poisson)."""
        return mean

    def total(self, cause: Chance, number: float, each: Moments) -> float:
        """Return the sum of the costs of a number of events."""
        return number * each.mean


@dataclass(frozen=True, slots=True)
class DrawnEvents(MeanEvents):
    """Events of one draw; the same seed and draw give the same ones."""

    seed: int
    draw: int

    def stream(self, cause: Chance) -> Random:
        """Return the random numbers of a cause."""
        return Random(((self.seed << 32) + self.draw) * len(Chance) + cause)

    def count(self, cause: Chance, mean: float, tries: float = inf) -> float:
        """Return a number of events: Poisson, of a mean that is gamma-distributed where tries are finite."""
        if mean <= 0.0:
            return 0.0
        random = self.stream(cause)
        if tries < inf:
            mean = random.gammavariate(tries, mean / tries)
        return _poisson(random, mean)

    def total(self, cause: Chance, number: float, each: Moments) -> float:
        """Return the sum of independent costs: a gamma distribution of their mean and variance."""
        if number <= 0.0 or each.mean <= 0.0 or each.variance <= 0.0:
            return number * each.mean
        scale = each.variance / each.mean
        return self.stream(cause).gammavariate(number * each.mean / scale, scale)


def _poisson(random: Random, mean: float) -> float:
    """Return a Poisson-distributed number."""
    if mean > MANY:
        return max(floor(random.gauss(mean, sqrt(mean)) + 0.5), 0)
    number, term, drawn = 0, exp(-mean), random.random()
    while drawn > term and number < 10 * MANY:
        drawn -= term
        number += 1
        term *= mean / number
    return number
