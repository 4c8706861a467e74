"""What to expect of a cluster that was not counted from those that were: a median, and how far others lie from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, log, sqrt
from statistics import NormalDist, fmean

NORMAL = NormalDist()
NORMAL_95 = NORMAL.inv_cdf(0.95)
# A new member lies beyond the farthest one that was counted by this factor at most: without an end, the distribution
# that few members leave has a mean above every one of them. Assumed; 88 to 90 % of new members stay in the 90 %
# interval where the log's deviation is 0.7, and 81 % of three members' or 84 % of four's where it is 1.2.
BEYOND_FARTHEST = 3.0


@dataclass(frozen=True, slots=True)
class Spread:
    """A quantity over its median, from one cluster to another: lognormal, and cut off at the same factor on each side.

    Attributes:
        deviation: standard deviation of the log without the cut, from a 90 % interval that is Student's; 0: known.
        reach: log of the factor at which it is cut off.
    """

    deviation: float
    reach: float

    def factor(self, probability: float) -> float:
        """Return the factor that is not exceeded with a probability."""
        if self.deviation == 0.0:
            return 1.0
        beyond = NORMAL.cdf(-self.reach / self.deviation)
        within = min(max(beyond + (1.0 - 2.0 * beyond) * probability, 1e-12), 1.0 - 1e-12)
        return exp(self.deviation * NORMAL.inv_cdf(within))


KNOWN = Spread(0.0, 0.0)


@dataclass(frozen=True, slots=True)
class NewCluster:
    """A quantity of a cluster that was not counted: its median, and how far clusters lie from it."""

    median: float
    spread: Spread


def _student_95(freedom: int) -> float:
    """Return the 95 % quantile of Student's t over that of the normal distribution.

    Exact for one and two degrees of freedom; above, Fisher's expansion in 1 / freedom, within 1 %. Source: Abramowitz
    and Stegun, Handbook of Mathematical Functions, equation 26.7.5.
    """
    if freedom <= 2:
        return {1: 6.314, 2: 2.920}[max(freedom, 1)] / NORMAL_95
    z, n = NORMAL_95, freedom
    terms = (z**3 + z) / (4 * n), (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
    return (z + sum(terms) + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)) / z


def of_new_cluster(values: Mapping[str, Sequence[float]], group: str, counting: Sequence[float] = ()) -> NewCluster:
    """Return the quantity of one more member of a group.

    Groups share the variance between their members. Their means differ as much as that variance leaves unexplained, so
    that a group's own mean counts as far as groups differ at all (one-way random effects, method of moments).

    Args:
        values: of members by group; their logs are taken to be normal.
        group: of the new member; one without members has the mean of all.
        counting: variances of the logs by counting alone, which are no difference between members.

    Raises:
        ValueError: fewer than two values.
    """
    logs = {name: [log(value) for value in group_values] for name, group_values in values.items() if group_values}
    every = [value for group_logs in logs.values() for value in group_logs]
    if len(every) < 2:
        raise ValueError("expected two values or more to tell how far a new one lies")
    freedom = len(every) - len(logs)
    means = {name: fmean(group_logs) for name, group_logs in logs.items()}
    grand = fmean(every)
    squares = sum((value - means[name]) ** 2 for name, group_logs in logs.items() for value in group_logs)
    if freedom == 0:  # one member a group: all of the difference may be between members
        squares, freedom = sum((value - grand) ** 2 for value in every), len(every) - 1
    within = squares / freedom
    between = _between(logs, means, grand, within)
    members = len(logs.get(group, ()))
    weight = between / (between + within / members) if members and between > 0.0 else 0.0
    mean = grand + weight * (means.get(group, grand) - grand)
    of_mean = within / len(every) + (1.0 - weight) * between
    scatter = max(within - (fmean(counting) if counting else 0.0), 0.0)
    farthest = max(
        abs(value - grand - weight * (means[name] - grand)) for name, group_logs in logs.items() for value in group_logs
    )
    spread = Spread(sqrt(scatter + of_mean) * _student_95(freedom), farthest + log(BEYOND_FARTHEST))
    return NewCluster(exp(mean), spread)


def _between(logs: Mapping[str, Sequence[float]], means: Mapping[str, float], grand: float, within: float) -> float:
    """Return the variance between groups that the variance within them leaves."""
    if len(logs) < 2:
        return 0.0
    sizes = [len(group_logs) for group_logs in logs.values()]
    effective = (sum(sizes) - sum(size**2 for size in sizes) / sum(sizes)) / (len(sizes) - 1)
    mean_square = sum(len(logs[name]) * (mean - grand) ** 2 for name, mean in means.items()) / (len(logs) - 1)
    return max((mean_square - within) / effective, 0.0)
