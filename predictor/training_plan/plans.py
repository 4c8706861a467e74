"""The plans that may be chosen: every case bounded, then searched, with its work and its outlook."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from predictor.core.base.errors import ConfigError, NoLayoutError, PublishedError
from predictor.core.base.quantities import HOURS_PER_MONTH, span
from predictor.layout_search.answer import SearchAnswer, Winner, search
from predictor.layout_search.gpu_counts import dearer_half, least_hours
from predictor.layout_search.question import SearchProblem
from predictor.training_plan.outlook import HIGH, LOW, Outlook, outlook
from predictor.training_plan.question import Case, PlanQuestion, Purchase, tokens_with_batch
from predictor.training_plan.work import Work, work_of

Progress = Callable[[int, int], None]
LIKELY = 0.5
NO_LAYOUT = "no layout fits"  # as the search says it, before numbers
# Of every plan; those that may be chosen are drawn as often as is asked. Strata of the step's time leave a probability
# known to a hundredth.
FEW_DRAWS = 200


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """A system, a number of its GPUs, a precision and a batch, with the fastest layout of them.

    Attributes:
        case: what was searched.
        purchase: how the GPUs are paid for.
        answer: of the search; its first winner is the layout.
        work: without interruptions.
        outlook: draws of the wall time.
        price_per_hour: of all GPUs and of what is stored; None where no price is known.
        limit_hours: by which deadline and budget are both kept; None without either.
    """

    case: Case
    purchase: Purchase
    answer: SearchAnswer
    work: Work
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

    def chance(self, hours: float | None, price: float | None) -> float:
        """Return the probability that the training ends, within so many hours and for such a price."""
        return self.outlook.chance_within(limit_hours(hours, price, self.price_per_hour))

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

    def drawn(self, draws: int, seed: int) -> TrainingPlan:
        """Return the plan with so many draws of its wall time."""
        answer = self.answer
        hardware, num_gpus = answer.system.hardware, self.case.num_gpus
        return replace(self, outlook=outlook(self.work, num_gpus, hardware, answer.budget, self.purchase, draws, seed))

    @property
    def cost(self) -> float:
        """Return the likely price; GPU-hours where prices are not known."""
        price = self.likely_price
        return self.hours * self.case.num_gpus if price is None else price

    @property
    def interval_hours(self) -> tuple[float, float]:
        """Return the ends of the 90 % interval of the wall time."""
        return self.hours_at(LOW), self.hours_at(HIGH)


def silent(_: int, __: int) -> None:
    """Say nothing of the progress."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A case without a plan.

    Attributes:
        reason: why.
        beyond: hours at its peak over those of deadline and budget, where that is why.
    """

    case: Case
    reason: str
    beyond: float | None = None


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


def considered(question: PlanQuestion, progress: Progress) -> Considered:
    """Return the plans of a question; those of the searches so far where the user interrupts them.

    Args:
        question: with its cases.
        progress: is told how many searches are done, and of how many; at the end, however it comes, that all are.

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
        for case, problem in problems:
            progress(done, len(problems))
            found = _only_dearer(question, case, plans) or _plans_of(question, case, problem)
            plans += [] if isinstance(found, LeftOut) else found
            left_out += [found] if isinstance(found, LeftOut) else []
            done += 1
        plans += [] if plans else _nearest(question, problems, left_out)
    except KeyboardInterrupt:
        if not plans:
            raise
    finally:
        progress(len(cases), len(cases))
    if impossible and not plans and len(impossible) == len(cases):
        raise impossible[0]
    return Considered(tuple(plans), tuple(left_out), len(cases), done + len(impossible) == len(cases))


def _batch_tokens(problem: SearchProblem) -> int:
    return problem.space.model.sequence_length * problem.space.global_batch_size


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
    question: PlanQuestion, case: Case, problem: SearchProblem, at_any_rate: bool = False
) -> list[TrainingPlan] | LeftOut:
    """Return the plans of one case; why there are none where it misses deadline or budget at its peak, or nothing fits.

    Args:
        question: with deadline and budget.
        case: that is searched.
        problem: of the search.
        at_any_rate: search it even where it misses them.

    Raises:
        ConfigError: nobody says how many tokens are trained.
    """
    stated = problem.budget.train_tokens
    if stated is None:
        raise ConfigError(
            "train_tokens is missing: how many tokens are trained? --train-tokens 1e12, or budget.train_tokens of the "
            "configuration"
        )
    file = question.file
    tokens = tokens_with_batch(stated, _batch_tokens(problem), file.critical_batch_tokens)
    if file.ramp_up is not None and file.ramp_up.tokens > tokens:
        raise ConfigError(
            f"ramp_up.tokens is {file.ramp_up.tokens:,.0f}, above the {tokens:,.0f} tokens of the training; give fewer"
        )
    missed = _missed_at_peak(question, case, least_hours(problem, tokens))
    if missed is not None and not at_any_rate:
        return missed
    ramp_up, batch = file.ramp_up, problem.space.global_batch_size
    if ramp_up is not None and ramp_up.from_batch_size > batch:
        reason = f"ramp_up.from_batch_size is {ramp_up.from_batch_size:,}, above the batch of {batch:,} samples"
        return LeftOut(case, reason)
    try:
        answer = search(problem, top=1, best_only=True, parts=question.parts)
    except NoLayoutError as error:
        return LeftOut(case, _without_layout(error, problem))
    winner = answer.winners[0]
    work = work_of(winner, answer.system, tokens, file)
    stored = 0.0
    if file.storage is not None:
        gigabytes = work.checkpoint_bytes / 1e9 * file.storage.kept_checkpoints
        stored = gigabytes * file.storage.price_per_gb_month / HOURS_PER_MONTH
    return list(_paid(question, case, answer, work, stored))


def _without_layout(error: NoLayoutError, problem: SearchProblem) -> str:
    """Return why a search has no layout, and what would have been needed."""
    first = problem.space.first_batch
    if error.divides:
        return str(error).partition(" (")[0]
    if not first:
        return "no layout divides model and batch"
    return f"no layout divides model, batch and ramp_up.from_batch_size, {first:,}, by micro-batch × data-parallel size"


def _only_dearer(question: PlanQuestion, case: Case, plans: Sequence[TrainingPlan]) -> LeftOut | None:
    """Return a case whose price is out of reach, as it was on half the GPUs, where it had risen; None of any other."""
    most, cheapest = question.file.max_price, {}
    for plan in sorted(plans, key=lambda plan: plan.cost, reverse=True):
        if replace(plan.case, num_gpus=case.num_gpus) == case:
            cheapest[plan.case.num_gpus] = plan
    half = dearer_half({count: plan.cost for count, plan in cheapest.items()}, case.num_gpus)
    if most is None or half is None:
        return None
    least = cheapest[half].price(cheapest[half].hours_at(LOW))
    if least is None or least <= most:
        return None
    return LeftOut(case, f"costs more than on {half:,} GPUs, {least:,.0f} {question.file.currency} there")


def _nearest(
    question: PlanQuestion, problems: list[tuple[Case, SearchProblem]], left_out: list[LeftOut]
) -> list[TrainingPlan]:
    """Return the plans of the case that misses deadline or budget by the least; none where no layout of any fits."""
    searches = dict(problems)
    beyond = [(each.beyond, each.case) for each in left_out if each.beyond is not None]
    for _, case in sorted(beyond, key=lambda each: each[0]):
        found = _plans_of(question, case, searches[case], at_any_rate=True)
        if not isinstance(found, LeftOut):
            left_out[:] = [each for each in left_out if each.case != case]
            return found
    return []


def _missed_at_peak(question: PlanQuestion, case: Case, least: float) -> LeftOut | None:
    """Return a case that misses deadline or budget however fast it is; None where it may keep them.

    Args:
        question: with deadline and budget.
        case: with its number of GPUs and ways to pay.
        least: hours at the peak of the GPUs, without interruptions.
    """
    deadline, most = question.calendar.hours, question.file.max_price
    if deadline is not None and least > deadline:
        return LeftOut(case, f"takes {span(least)} or more at its peak", least / deadline)
    prices = [purchase.price_per_gpu_hour for purchase in case.offer.purchases]
    costs = [least * case.num_gpus * price for price in prices if price is not None]
    if most is not None and costs and min(costs) > most:
        reason = f"costs {min(costs):,.0f} {question.file.currency} or more at its peak"
        return LeftOut(case, reason, min(costs) / most)
    return None


def _paid(
    question: PlanQuestion, case: Case, answer: SearchAnswer, work: Work, stored: float
) -> Iterator[TrainingPlan]:
    """Yield a case's plan for every way to pay for its GPUs."""
    hardware, file = answer.system.hardware, question.file
    for purchase in case.offer.purchases:
        price = purchase.price_per_gpu_hour
        draws = min(file.draws, FEW_DRAWS)
        seen = outlook(work, case.num_gpus, hardware, answer.budget, purchase, draws, file.seed)
        spares = seen.simulation.reliability.spare_nodes * hardware.gpus_per_node if file.paid_spares else 0
        per_hour = None if price is None else price * (case.num_gpus + spares) + stored
        yield TrainingPlan(
            case=case,
            purchase=purchase,
            answer=answer,
            work=work,
            outlook=seen,
            price_per_hour=per_hour,
            limit_hours=limit_hours(question.calendar.hours, file.max_price, per_hour),
        )


def limit_hours(deadline: float | None, most: float | None, price_per_hour: float | None) -> float | None:
    """Return the hours by which deadline and budget are both kept; None without either."""
    limits = [] if deadline is None else [deadline]
    limits += [most / price_per_hour] if most is not None and price_per_hour else []
    return min(limits, default=None)
