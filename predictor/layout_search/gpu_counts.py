"""The fewest GPUs on which a training meets a deadline or a budget: a search per number of GPUs, from a node on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from predictor.core.base.errors import ConfigError, NoLayoutError
from predictor.core.base.quantities import span
from predictor.core.costs.low_precision import peak_tflop_per_s
from predictor.core.workload.low_precision import product_precision
from predictor.layout_search.answer import SearchAnswer, search
from predictor.layout_search.question import SearchProblem, SearchQuestion, search_problem
from predictor.layout_search.report.gpu_counts import Tried
from predictor.layout_search.report.search_bill import Limits, keeping, training_of
from predictor.layout_search.shared_parts import SharedParts
from predictor.layout_search.watch import WATCH

# The largest runs in print have about as many.
MOST_GPUS = 65_536
PARTS = 4  # of a doubling, between which numbers are tried
SECONDS_PER_HOUR = 3600.0
MEETS = "meets it"


@dataclass(frozen=True, slots=True)
class Hunt:
    """What a search for a number of GPUs is asked.

    Attributes:
        question: of every search; its number of GPUs is left out.
        goals: what the training may take, failures included.
        most: the largest number of GPUs.
        top: layouts to return.
        pareto: also the Pareto front.
    """

    question: SearchQuestion
    goals: Limits
    most: int
    top: int
    pareto: bool


def doublings(least: int, most: int, parts: int) -> Iterator[int]:
    """Return a number, its doublings, and the whole numbers that divide each doubling into even parts.

    >>> list(doublings(1, 12, 2)), list(doublings(1, 12, 4))
    ([1, 2, 3, 4, 6, 8, 12], [1, 2, 3, 4, 5, 6, 7, 8, 10, 12])
    """
    count = least
    while count <= most:
        counts = [count + count * part // parts for part in range(parts) if count * part % parts == 0]
        yield from (each for each in counts if each <= most)
        count *= 2


def dearer_half(prices: Mapping[int, float], num_gpus: int) -> int | None:
    """Return the largest number up to half the GPUs if it cost more than half of it did; further doublings do, too.

    Every GPU computes less between its traffic.

    >>> dearer_half({8: 10.0, 16: 12.0}, 32), dearer_half({8: 10.0, 16: 12.0}, 16), dearer_half({8: 10.0, 16: 9.0}, 32)
    (16, None, None)
    """
    half = max((count for count in prices if count <= num_gpus // 2), default=0)
    quarter = max((count for count in prices if count <= half // 2), default=0)
    return half if quarter and prices[half] > prices[quarter] else None


def fewest(hunt: Hunt) -> tuple[SearchAnswer, tuple[Tried, ...]]:
    """Return the search on the fewest GPUs that meet the goals, and all numbers that were tried, in order.

    Every number is searched, so nothing is assumed about how time falls with GPUs. Left out without a search are
    numbers that miss the deadline at the peak of their GPUs; a budget is given up where a doubling costs more.

    Raises:
        ConfigError: the question is not possible, or no number of GPUs meets the goals.
        KeyboardInterrupt: nobody waits any longer, and no number of GPUs was found yet.
    """
    goals, question = hunt.goals, hunt.question
    alone = search_problem(replace(question, num_gpus=1))
    if alone.budget.train_tokens is None:
        raise ConfigError("--deadline-days and --budget need --train-tokens: how many tokens does the training take?")
    if goals.price is not None and alone.budget.price_per_gpu_hour is None:
        raise ConfigError("--budget needs --price, of a GPU-hour")
    node, parts = alone.system.hardware.gpus_per_node, SharedParts()
    tried: list[Tried] = []
    prices: dict[int, float] = {}
    for nodes in doublings(1, hunt.most // node, PARTS):
        num_gpus = nodes * node
        half = dearer_half(prices, num_gpus)
        if half is not None and goals.price is not None and prices[half] > goals.price:
            break
        answer = _meeting(hunt, num_gpus, tried, parts)
        if answer is not None:
            return answer, tuple(tried)
        if WATCH.get().stopped:
            raise KeyboardInterrupt
        training = tried[-1].training
        if training is not None and training.price is not None:
            prices[num_gpus] = training.price
    raise ConfigError(_none(tried, goals, hunt.most))


def _meeting(hunt: Hunt, num_gpus: int, tried: list[Tried], parts: SharedParts) -> SearchAnswer | None:
    """Return the search on a number of GPUs if it meets the goals; add it to those that were tried."""
    problem = search_problem(replace(hunt.question, num_gpus=num_gpus))
    least = least_hours(problem, problem.budget.train_tokens or 0.0)
    if hunt.goals.hours is not None and least > hunt.goals.hours:
        tried.append(Tried(num_gpus, None, None, f"takes {span(least)} or more at its peak"))
        return None
    try:
        answer = search(problem, hunt.top, hunt.pareto, parts=parts)
    except NoLayoutError as error:
        verdict = "no layout fits" if error.divides else "no layout divides model and batch"
        tried.append(Tried(num_gpus, None, None, verdict))
        return None
    kept = keeping(answer, hunt.goals)
    fastest = (kept or answer).winners[0]
    training = training_of(answer, fastest)
    assert training is not None
    tried.append(Tried(num_gpus, fastest.prediction.step.us, training, hunt.goals.missed(training) or MEETS))
    return kept


def least_hours(problem: SearchProblem, tokens: float) -> float:
    """Return the hours that a training takes where every GPU runs at the peak of its products."""
    run, num_gpus = problem.space.base, problem.space.num_gpus
    peak = peak_tflop_per_s(problem.system.hardware.gpu, product_precision(run)) * 1e12
    return run.model_flops_per_token * tokens / (num_gpus * peak) / SECONDS_PER_HOUR


def _none(tried: list[Tried], goals: Limits, most: int) -> str:
    """Return why no number of GPUs meets the goals, with the nearest miss."""
    known = [one for one in tried if one.training is not None]
    if not known:
        reason = tried[-1].verdict if tried else "a node has more"
        return f"no number of GPUs up to {most:,} meets the goals: {reason}; raise --max-gpus or the limits"
    hours = [one.training.hours for one in known if one.training is not None]
    prices = [one.training.price or 0.0 for one in known if one.training is not None]
    takes_too_long = goals.hours is not None and min(hours) > goals.hours
    missing = hours if takes_too_long else prices
    best = known[missing.index(min(missing))]
    return (
        f"no number of GPUs up to {most:,} meets the goals: training on {best.num_gpus:,} {best.verdict}; "
        "raise --max-gpus or the limits"
    )
