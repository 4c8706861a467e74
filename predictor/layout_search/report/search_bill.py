"""What a whole training costs in a layout that a search found, failures included, and limits on it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from math import inf

from predictor.core.base.errors import ConfigError
from predictor.core.base.quantities import HOURS_PER_DAY, span
from predictor.core.plan.loading import Loaded
from predictor.core.report.budget import Bill, prediction_bill
from predictor.core.report.goodput import goodput_notes
from predictor.layout_search.answer import SearchAnswer, Winner


@dataclass(frozen=True, slots=True)
class Training:
    """A whole training in one layout.

    Attributes:
        steps: of the training.
        hours: wall time with what interruptions, restarts and checkpoints cost; infinite without progress.
        goodput: share of it that is steps which count.
        gpu_hours: of all GPUs in that time.
        price: of them; None without a price of a GPU-hour.
    """

    steps: int
    hours: float
    goodput: float
    gpu_hours: float
    price: float | None

    @property
    def days(self) -> float:
        """Return the wall time in days."""
        return self.hours / HOURS_PER_DAY

    def as_dict(self) -> dict[str, float | None]:
        """Return the fields for machines; null what is infinite, since the training makes no progress."""
        return {name: None if value == inf else value for name, value in asdict(self).items()}


@dataclass(frozen=True, slots=True)
class Limits:
    """The most that a training may take; None: no limit.

    Attributes:
        hours: wall time.
        price: in the currency of the price of a GPU-hour.
    """

    hours: float | None = None
    price: float | None = None

    def missed(self, training: Training) -> str | None:
        """Return the limit that a training exceeds, in words; None where it keeps all."""
        if training.hours == inf and self != Limits():
            return "makes no progress among interruptions"
        if self.hours is not None and training.hours > self.hours:
            return f"takes {span(training.hours)}, more than {span(self.hours)}"
        if self.price is not None and training.price is not None and training.price > self.price:
            return f"costs {training.price:,.0f}, more than {self.price:,.0f}"
        return None


def _bill(answer: SearchAnswer, winner: Winner) -> Bill:
    prediction = winner.prediction
    return prediction_bill(prediction, Loaded(prediction.run, answer.system, answer.budget, ()), draws=0)


def training_notes(answer: SearchAnswer) -> list[str]:
    """Return what the fastest layout's goodput rests on, a sentence each; none without a number of tokens."""
    return goodput_notes(_bill(answer, answer.winners[0]).goodput, answer.budget)


def training_of(answer: SearchAnswer, winner: Winner) -> Training | None:
    """Return the whole training in a layout; None where the search was told no number of tokens."""
    bill, budget = _bill(answer, winner), answer.budget
    if bill.goodput is None:
        return None
    hours = inf if bill.goodput.hours is None else bill.goodput.hours
    gpu_hours = hours * answer.space.num_gpus
    price = gpu_hours * budget.price_per_gpu_hour if budget.price_per_gpu_hour else budget.price_per_gpu_hour
    return Training(bill.steps, hours, bill.goodput.share, gpu_hours, price)


def keeping(answer: SearchAnswer, limits: Limits) -> SearchAnswer | None:
    """Return a search without the layouts that exceed a limit; None where no layout that fits for certain is left."""

    def kept(winners: list[Winner]) -> list[Winner]:
        trainings = [(winner, training_of(answer, winner)) for winner in winners]
        return [winner for winner, training in trainings if training is not None and limits.missed(training) is None]

    if not kept(answer.winners):
        return None
    return replace(
        answer,
        winners=kept(answer.winners),
        unsure=kept(answer.unsure),
        pareto=kept(answer.pareto),
    )


def within(answer: SearchAnswer, limits: Limits) -> SearchAnswer:
    """Return a search without the layouts that exceed a limit.

    Raises:
        ConfigError: the fastest does; on given GPUs it is the cheapest, too.
    """
    if limits == Limits():
        return answer
    kept = keeping(answer, limits)
    if kept is None:
        fastest = training_of(answer, answer.winners[0])
        assert fastest is not None
        raise ConfigError(
            f"no layout on {answer.space.num_gpus:,} GPUs keeps the limit: training in the fastest that fits "
            f"{limits.missed(fastest)}; --deadline-days and --budget look for the number of GPUs"
        )
    return kept
