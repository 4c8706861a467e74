"""The fewest GPUs on which a training meets a deadline or a budget: a search per number of GPUs, from a node on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise, takewhile

from predictor.core.base.errors import ConfigError, NoLayoutError
from predictor.core.base.quantities import span
from predictor.core.costs.low_precision import peak_tflop_per_s
from predictor.core.workload.low_precision import product_precision
from predictor.layout_search.answer import SearchAnswer, search
from predictor.layout_search.question import SearchProblem, SearchQuestion, search_problem
from predictor.layout_search.report.gpu_counts import Tried
from predictor.layout_search.report.search_bill import Limits, keeping, training_of
from predictor.layout_search.watch import WATCH

# The largest runs in print have about as many.
MOST_GPUS = 65_536
# So many doublings in a row that cost more: further ones do, too, as every GPU computes less between its traffic.
DEARER = 2
# Between a number that meets the goals and half of it, so many parts of a doubling are tried.
PARTS = 4
SECONDS_PER_HOUR = 3600.0
MEETS = "meets it"
FEWER = "Interrupted before all numbers of GPUs were tried: fewer may do."


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


def doublings(gpus_per_node: int, most: int) -> Iterator[int]:
    """Return numbers of GPUs: a node's, doubled up to the largest."""
    count = gpus_per_node
    while count <= most:
        yield count
        count *= 2


def between(num_gpus: int, gpus_per_node: int) -> list[int]:
    """Return whole nodes between half a number of GPUs and that number, in even steps.

    >>> between(64, 8), between(16, 8)
    ([40, 48, 56], [])
    """
    half = num_gpus // 2
    steps = [half + half * part // PARTS for part in range(1, PARTS)] if half >= gpus_per_node else []
    return [count for count in steps if half < count < num_gpus and count % gpus_per_node == 0]


def fewest(hunt: Hunt) -> tuple[SearchAnswer, tuple[Tried, ...]]:
    """Return the search on the fewest GPUs that meet the goals, and all numbers that were tried, in order.

    Every number is searched, so nothing is assumed about how time falls with GPUs: doublings of a node until one meets
    the goals, then steps between it and its half. Left out without a search are numbers that miss the deadline at the
    peak of their GPUs; a budget is given up where the price rose twice.

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
    node = alone.system.hardware.gpus_per_node
    tried: list[Tried] = []
    for num_gpus in doublings(node, hunt.most):
        answer = _meeting(hunt, num_gpus, tried)
        if answer is not None:
            answer = _fewer(hunt, num_gpus, node, tried) or answer
            if WATCH.get().stopped:
                answer = replace(answer, notes=(FEWER, *answer.notes))
            return answer, tuple(sorted(tried, key=lambda one: one.num_gpus))
        if WATCH.get().stopped:
            raise KeyboardInterrupt
        if _only_dearer(tried, goals):
            break
    raise ConfigError(_none(tried, goals, hunt.most))


def _fewer(hunt: Hunt, num_gpus: int, gpus_per_node: int, tried: list[Tried]) -> SearchAnswer | None:
    """Return the search on the fewest GPUs below a number that meets the goals; None where none does."""
    counts = takewhile(lambda _: not WATCH.get().stopped, between(num_gpus, gpus_per_node))
    found = (_meeting(hunt, count, tried) for count in counts)
    return next((answer for answer in found if answer is not None), None)


def _meeting(hunt: Hunt, num_gpus: int, tried: list[Tried]) -> SearchAnswer | None:
    """Return the search on a number of GPUs if it meets the goals; add it to those that were tried."""
    problem = search_problem(replace(hunt.question, num_gpus=num_gpus))
    least = least_hours(problem, problem.budget.train_tokens or 0.0)
    if hunt.goals.hours is not None and least > hunt.goals.hours:
        tried.append(Tried(num_gpus, None, None, f"takes {span(least)} or more at its peak"))
        return None
    try:
        answer = search(problem, hunt.top, hunt.pareto)
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


def _only_dearer(tried: list[Tried], goals: Limits) -> bool:
    """Return whether the price alone is missed, and rose at the last doublings."""
    known = [one.training for one in tried if one.training is not None][-DEARER - 1 :]
    prices = [training.price for training in known if training.price is not None]
    if goals.price is None or len(prices) <= DEARER or prices[-1] <= goals.price:
        return False
    return all(later > earlier for earlier, later in pairwise(prices))


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
