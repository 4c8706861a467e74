"""What a whole training costs in a layout that a search found, failures included, and limits on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from math import inf

from predictor.core.base.errors import ConfigError
from predictor.core.base.quantities import HOURS_PER_DAY, span
from predictor.core.base.words import counted
from predictor.core.plan.loading import Loaded
from predictor.core.report.budget import Bill, prediction_bill
from predictor.core.report.goodput import goodput_notes
from predictor.search.answer import SearchAnswer, Winner


@dataclass(frozen=True, slots=True)
class Training:
    """A whole training in one layout.

    Attributes:
        steps: of the training.
        hours: wall time with what interruptions, restarts and checkpoints cost; infinite without progress.
        goodput: share of it that is steps which count.
        gpu_hours: of all GPUs in that time.
        price: of them; None without a price of a GPU-hour.
        corrected_hours, corrected_price: the same at the ratio of published runs; None without such runs.
    """

    steps: int
    hours: float
    goodput: float
    gpu_hours: float
    price: float | None
    corrected_hours: float | None = None
    corrected_price: float | None = None

    @property
    def days(self) -> float:
        """Return the wall time in days."""
        return self.hours / HOURS_PER_DAY

    @property
    def longest_hours(self) -> float:
        """Return the wall time as predicted or at the ratio of published runs, whichever is longer."""
        return max(self.hours, self.corrected_hours or 0.0)

    @property
    def highest_price(self) -> float | None:
        """Return the price as predicted or at the ratio of published runs, whichever is higher."""
        return None if self.price is None else max(self.price, self.corrected_price or 0.0)

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
        """Return the limit that a training exceeds, as predicted or corrected, in words; None where it keeps all."""
        if training.hours == inf and self != Limits():
            return "makes no progress among interruptions"
        price = training.highest_price
        if self.hours is not None and training.longest_hours > self.hours:
            return f"takes {_beyond(training.hours, training.corrected_hours, self.hours, span)}"
        if self.price is not None and training.price is not None and price is not None and price > self.price:
            return f"costs {_beyond(training.price, training.corrected_price, self.price, '{:,.0f}'.format)}"
        return None


def _beyond(value: float, corrected: float | None, limit: float, written: Callable[[float], str]) -> str:
    """Return a value that exceeds a limit; one that does so corrected alone, with the corrected one."""
    by_ratio = "" if value > limit or corrected is None else f", {written(corrected)} at the ratio of published runs"
    return f"{written(value)}{by_ratio}, more than {written(limit)}"


def _bill(answer: SearchAnswer, winner: Winner) -> Bill:
    prediction = winner.prediction
    return prediction_bill(prediction, Loaded(prediction.run, answer.system, answer.budget, ()))


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
    training = Training(bill.steps, hours, bill.goodput.share, gpu_hours, price)
    ratio = winner.prediction.published_ratio
    if ratio is None:
        return training
    corrected_price = None if price is None else price * ratio
    return replace(training, corrected_hours=training.hours * ratio, corrected_price=corrected_price)


def keeping(answer: SearchAnswer, limits: Limits) -> SearchAnswer | None:
    """Return a search without the layouts that exceed a limit; None where no layout that fits for certain is left.

    A note counts the layouts that keep the limit as predicted, but not at the ratio of published runs.
    """

    def kept(winners: list[Winner]) -> list[Winner]:
        trainings = [(winner, training_of(answer, winner)) for winner in winners]
        return [winner for winner, training in trainings if training is not None and limits.missed(training) is None]

    if not kept(answer.winners):
        return None
    by_ratio = sum(_is_by_ratio(training_of(answer, winner), limits) for winner in answer.winners)
    said = f"Left out: {counted(by_ratio, 'layout')} that would break the limit at the ratio of published runs alone."
    return replace(
        answer,
        winners=kept(answer.winners),
        unsure=kept(answer.unsure),
        pareto=kept(answer.pareto),
        notes=(*answer.notes, *([said] if by_ratio else [])),
    )


def _is_by_ratio(training: Training | None, limits: Limits) -> bool:
    """Return whether a training keeps the limits as predicted, but not at the ratio of published runs."""
    if training is None or limits.missed(training) is None:
        return False
    return limits.missed(replace(training, corrected_hours=None, corrected_price=None)) is None


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
