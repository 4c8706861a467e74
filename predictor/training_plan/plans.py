"""The plans that may be chosen: every case bounded, then searched, with its work and its outlook."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from predictor.core.base.errors import ConfigError, NoLayoutError, PublishedError
from predictor.core.base.quantities import span
from predictor.layout_search.answer import SearchAnswer, Winner, search
from predictor.layout_search.question import SearchProblem
from predictor.training_plan.job import Job, job_of
from predictor.training_plan.outlook import HIGH, LOW, Outlook, outlook
from predictor.training_plan.question import Case, PlanQuestion, Purchase, least_hours, tokens_with_batch

HOURS_PER_MONTH = 730.0
LIKELY = 0.5


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """A system, a number of its GPUs, a precision and a batch, with the fastest layout of them.

    Attributes:
        case: what was searched.
        purchase: how the GPUs are paid for.
        answer: of the search; its first winner is the layout.
        job: without interruptions.
        outlook: draws of the wall time.
        price_per_hour: of all GPUs and of what is stored; None where no price is known.
        limit_hours: by which deadline and budget are both kept; None without either.
    """

    case: Case
    purchase: Purchase
    answer: SearchAnswer
    job: Job
    outlook: Outlook
    price_per_hour: float | None
    limit_hours: float | None

    @property
    def winner(self) -> Winner:
        """Return the layout with its prediction."""
        return self.answer.winners[0]

    @property
    def hours(self) -> float:
        """Return the median wall time."""
        return self.outlook.walls.quantile(LIKELY)

    @property
    def probability(self) -> float:
        """Return the probability that the training ends, within deadline and budget where there are any."""
        return self.outlook.chance_within(self.limit_hours)

    def hours_at(self, probability: float) -> float:
        """Return the hours that are not exceeded with a probability."""
        return self.outlook.walls.quantile(probability)

    def price(self, hours: float) -> float | None:
        """Return what so many hours cost; None where no price is known."""
        return None if self.price_per_hour is None else hours * self.price_per_hour

    @property
    def likely_price(self) -> float | None:
        """Return the price of the median wall time."""
        return self.price(self.hours)

    @property
    def interval_hours(self) -> tuple[float, float]:
        """Return the ends of the 90 % interval of the wall time."""
        return self.hours_at(LOW), self.hours_at(HIGH)


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A case without a plan, and why."""

    case: Case
    reason: str


@dataclass(frozen=True, slots=True)
class Considered:
    """All plans of a question.

    Attributes:
        plans: one per case and way to pay.
        left_out: cases without a plan.
        cases: of the question.
        is_whole: whether all of them were looked at.
    """

    plans: tuple[TrainingPlan, ...]
    left_out: tuple[LeftOut, ...]
    cases: int
    is_whole: bool


def considered(question: PlanQuestion, progress: Callable[[int, int], None]) -> Considered:
    """Return the plans of a question; those of the searches so far where the user interrupts them.

    Args:
        question: with its cases.
        progress: is told how many cases are done, and of how many.

    Raises:
        ConfigError: no case is possible; the message is that of the first.
    """
    cases = list(question.cases())
    plans: list[TrainingPlan] = []
    left_out: list[LeftOut] = []
    impossible: list[ConfigError | PublishedError] = []
    done = 0
    try:
        problems = _problems(question, cases, left_out, impossible)
        smallest = min((problem.space.base.model.sequence_length * problem.space.global_batch_size for _, problem in problems), default=0)
        for case, problem in problems:
            progress(done, len(cases))
            done += 1
            found = _plans_of(question, case, problem, smallest)
            plans += [] if isinstance(found, LeftOut) else found
            left_out += [found] if isinstance(found, LeftOut) else []
    except KeyboardInterrupt:
        if not plans:
            raise
    if impossible and not plans and len(impossible) == len(cases):
        raise impossible[0]
    return Considered(tuple(plans), tuple(left_out), len(cases), done + len(impossible) == len(cases))


def _problems(
    question: PlanQuestion, cases: list[Case], left_out: list[LeftOut], impossible: list[ConfigError | PublishedError]
) -> list[tuple[Case, SearchProblem]]:
    """Return the searches of cases that are possible."""
    problems = []
    for case in cases:
        try:
            problems.append((case, question.problem(case)))
        except (ConfigError, PublishedError) as error:
            impossible.append(error)
            left_out.append(LeftOut(case, str(error)))
    return problems


def _plans_of(
    question: PlanQuestion, case: Case, problem: SearchProblem, smallest: float
) -> list[TrainingPlan] | LeftOut:
    """Return the plans of one case; why there are none where it misses deadline or budget at its peak, or nothing fits.

    Raises:
        ConfigError: nobody says how many tokens are trained.
    """
    stated = problem.budget.train_tokens
    if stated is None:
        raise ConfigError(
            "train_tokens is missing: how many tokens are trained? --train-tokens 1e12, or budget.train_tokens of the "
            "configuration"
        )
    space, file = problem.space, question.file
    batch_tokens = space.base.model.sequence_length * space.global_batch_size
    tokens = tokens_with_batch(stated, batch_tokens, file.critical_batch_tokens, smallest)
    purchases = [each for each in case.offer.purchases if True]
    least = least_hours(problem, tokens)
    limits = [(purchase, _limit_hours(question, purchase, case.num_gpus, 0.0)) for purchase in purchases]
    missed = [limit for _, limit in limits if limit is not None and least > limit]
    if len(missed) == len(limits):
        deadline = question.calendar.hours
        is_late = deadline is not None and least > deadline
        cost = least * case.num_gpus * min((each.price_per_gpu_hour or 0.0 for each in purchases), default=0.0)
        return LeftOut(
            case, f"takes {span(least)} or more at its peak" if is_late else f"costs {cost:,.0f} or more at its peak"
        )
    try:
        answer = search(problem, top=1)
    except NoLayoutError as error:
        return LeftOut(case, "no layout fits" if error.divides else "no layout divides model and batch")
    winner = answer.winners[0]
    job = job_of(winner, answer.system, tokens, file)
    stored = 0.0
    if file.storage is not None:
        gigabytes = job.checkpoint_bytes / 1e9 * file.storage.kept_checkpoints
        stored = gigabytes * file.storage.price_per_gb_month / HOURS_PER_MONTH
    return list(_paid(question, case, answer, job, stored))


def _paid(
    question: PlanQuestion, case: Case, answer: SearchAnswer, job: Job, stored: float
) -> Iterator[TrainingPlan]:
    """Yield a case's plan for every way to pay for its GPUs."""
    hardware, file = answer.system.hardware, question.file
    for purchase in case.offer.purchases:
        price = purchase.price_per_gpu_hour
        seen = outlook(job, case.num_gpus, hardware, answer.budget, purchase, file.draws, file.seed)
        yield TrainingPlan(
            case=case,
            purchase=purchase,
            answer=answer,
            job=job,
            outlook=seen,
            price_per_hour=None if price is None else price * case.num_gpus + stored,
            limit_hours=_limit_hours(question, purchase, case.num_gpus, stored),
        )


def _limit_hours(question: PlanQuestion, purchase: Purchase, num_gpus: int, stored: float) -> float | None:
    """Return the hours by which deadline and budget are both kept; None without either."""
    limits = [] if question.calendar.hours is None else [question.calendar.hours]
    price, most = purchase.price_per_gpu_hour, question.file.max_price
    if most is not None and price is not None and price * num_gpus + stored > 0.0:
        limits.append(most / (price * num_gpus + stored))
    return min(limits, default=None)
