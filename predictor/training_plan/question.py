"""The question of a plan: a search for every system, number of GPUs, precision and batch that may be chosen."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import date
from itertools import product, zip_longest
from math import inf
from pathlib import Path
from typing import Any

import yaml

from predictor.core.base.errors import ConfigError, PublishedError, same_name
from predictor.core.costs.hardware_change import current
from predictor.core.plan.loading import gpus_per_node_of
from predictor.core.schema.finding import find_system
from predictor.core.schema.own_system import is_system_file
from predictor.layout_search.question import SearchProblem, SearchQuestion, search_problem
from predictor.layout_search.shared_parts import SharedParts
from predictor.training_plan.amounts import Calendar, batch_sizes, gpu_counts, spelled
from predictor.training_plan.prices import NO_PRICES, Price, PriceList, read_prices
from predictor.training_plan.section import PRECISIONS, PlanFile, validated


@dataclass(frozen=True, slots=True)
class Purchase:
    """How GPUs of a system are paid for.

    Attributes:
        price_per_gpu_hour: None where nobody says it.
        interruptions_per_node_day: of spot instances; None of others.
    """

    price_per_gpu_hour: float | None
    interruptions_per_node_day: float | None = None

    @property
    def is_spot(self) -> bool:
        """Return whether the instances may be taken away."""
        return self.interruptions_per_node_day is not None


@dataclass(frozen=True, slots=True)
class Offer:
    """A system with the numbers of its GPUs that may be chosen.

    Attributes:
        system: as it was named.
        name: of the published system, or of the file of one's own.
        counts: numbers of GPUs.
        purchases: ways to pay for them.
    """

    system: str
    name: str
    gpus_per_node: int
    counts: tuple[int, ...]
    purchases: tuple[Purchase, ...]


@dataclass(frozen=True, slots=True)
class Batch:
    """A global batch, in samples or in tokens; that of the model's file where both are None."""

    samples: int | None = None
    tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """What one search is about; its layouts compete."""

    offer: Offer
    num_gpus: int
    precision: str | None
    batch: Batch


@dataclass(frozen=True, slots=True)
class PlanQuestion:
    """A plan's file made ready.

    Attributes:
        file: as it was read.
        base: folder that its paths are relative to.
        offers: systems that may be chosen.
        calendar: start and deadline.
        notes: on prices.
        parts: that its searches share.
    """

    file: PlanFile
    base: Path
    offers: tuple[Offer, ...]
    calendar: Calendar
    notes: tuple[str, ...]
    parts: SharedParts = field(default_factory=SharedParts, compare=False, repr=False)

    def cases(self) -> Iterator[Case]:
        """Return every search, the smallest numbers of GPUs of all systems first."""
        sizes, tokens = self.file.global_batch_size, self.file.global_batch_tokens
        batches = [Batch(samples=count) for count in (() if sizes is None else batch_sizes(sizes))]
        batches += [Batch(tokens=count) for count in (() if tokens is None else batch_sizes(tokens))]
        ranks = zip_longest(*([(offer, count) for count in offer.counts] for offer in self.offers))
        ordered = [each for rank in ranks for each in rank if each is not None]
        choices = product(ordered, self.file.precisions or (None,), batches or [Batch()])
        yield from (Case(offer, count, precision, batch) for (offer, count), precision, batch in choices)

    def problem(self, case: Case) -> SearchProblem:
        """Return the search of a case.

        Raises:
            ConfigError: the model, the system, the precision or the batch is not possible.
        """
        recipe = None if case.precision is None else PRECISIONS[case.precision]
        changes = [f"{key}={_spelled(value)}" for key, value in self.file.set.items()]
        changes += [f"budget.{key}={_spelled(value)}" for key, value in self.file.budget.items()]
        if case.precision is not None:
            changes.append(f"training.gemm_recipe={'null' if recipe is None else recipe}")
        question = SearchQuestion(
            model=_model(self.file.model, self.base),
            num_gpus=case.num_gpus,
            system=case.offer.system,
            global_batch_size=case.batch.samples,
            global_batch_tokens=case.batch.tokens,
            sequence_length=self.file.sequence_length,
            precision=case.precision if recipe is None else None,
            framework=self.file.framework,
            train_tokens=self.file.train_tokens,
            changes=tuple(changes),
        )
        problem = search_problem(question)
        limit = inf if self.file.max_power_w is None else self.file.max_power_w / case.num_gpus
        if limit < (current(problem.system.hardware, "power_limit_w") or 0.0):
            problem = search_problem(replace(question, changes=(*changes, f"power_limit_w={limit:.6g}")))
        if self.file.ramp_up is None:
            return problem
        # Megatron-LM, megatron/core/num_microbatches_calculator.py: every batch of a ramp-up has whole micro-batches on
        # every replica.
        return replace(problem, space=replace(problem.space, first_batch=self.file.ramp_up.from_batch_size))


def tokens_with_batch(tokens: float, batch_tokens: float, critical: float | None) -> float:
    """Return the tokens that a training with a batch needs to reach the loss of one with the critical batch.

    E(B) ∝ 1 + B ÷ B_crit. Source: McCandlish et al. 2018, arXiv:1812.06162, section 2.3, where steps S and examples
    E = B · S have (S ÷ S_min − 1) (E ÷ E_min − 1) = 1. The stated tokens are those of the critical batch, and of any
    below it.

    >>> tokens_with_batch(1e12, 8e6, 4e6), tokens_with_batch(1e12, 2e6, 4e6)
    (1500000000000.0, 1000000000000.0)
    """
    if critical is None:
        return tokens
    return tokens * (1.0 + max(batch_tokens / critical, 1.0)) / 2.0


def _spelled(value: Any) -> str:
    """Return a value as ``--set`` takes it."""
    if isinstance(value, str):
        return value
    return str(yaml.safe_dump(value, default_flow_style=True, width=10**6).removesuffix("\n...\n").strip())


def _model(model: str | dict[str, Any], base: Path) -> str | dict[str, Any]:
    """Return a model whose path is relative to the plan's folder."""
    if isinstance(model, dict):
        return model
    name, mark, part = model.partition("#")
    return f"{base / name}{mark}{part}" if (base / name).exists() else model


def _purchases(price: Price, name: str, file: PlanFile) -> tuple[Purchase, ...]:
    """Return the ways to pay for GPUs of a system.

    Raises:
        ConfigError: it is not said how often spot instances are taken away.
    """
    found, spot = [], price.spot_price_per_gpu_hour if file.spot else None
    if price.price_per_gpu_hour is not None or spot is None:
        found.append(Purchase(price.price_per_gpu_hour))
    if spot is not None:
        interruptions = price.interruptions_per_node_day or file.interruptions_per_node_day
        if interruptions is None:
            raise ConfigError(
                f"spot instances of {name} are taken away, and nobody says how often: give "
                f"interruptions_per_node_day (--interruptions-per-node-day 0.2), or the same in the price list"
            )
        found.append(Purchase(spot, interruptions))
    return tuple(found)


def calendar_of(file: PlanFile) -> Calendar:
    """Return the calendar of a plan.

    Raises:
        ConfigError: the deadline is before the start.
    """
    calendar = Calendar(file.start or date.today(), file.deadline)
    if isinstance(file.deadline, date) and file.deadline < calendar.start:
        began = "the start" if file.start is not None else "today, when the training starts without start"
        raise ConfigError(
            f"deadline is {spelled(file.deadline)}, before {began}, {spelled(calendar.start)}; "
            "give a later day, or a number of days"
        )
    return calendar


def plan_question(content: dict[str, Any], base: Path, where: str = "") -> PlanQuestion:
    """Return the question of a plan's content.

    Args:
        content: keys and values of a plan's file, with those of options.
        base: folder that paths are relative to.
        where: begins a message, such as the file's name.

    Raises:
        ConfigError: a key or a value is not allowed, a system is not known, or a price list cannot be read.
    """
    file = validated(content, where)
    calendar = calendar_of(file)
    nodes = {published_name(system, base): gpus_per_node_of(system, base) for system in file.systems}
    prices = NO_PRICES if file.prices is None else read_prices(base / file.prices, nodes, file.region)
    question = PlanQuestion(file, base, _offers(file, base, prices), calendar, prices.notes)
    if any(offer.purchases[0].price_per_gpu_hour is None or offer.purchases[0].is_spot for offer in question.offers):
        question = replace(
            question, offers=_offers(file, base, prices, Price(price_per_gpu_hour=_said_price(question)))
        )
    _check_prices(question)
    return replace(question, notes=(*question.notes, *_unused(question)))


def _offers(file: PlanFile, base: Path, prices: PriceList, otherwise: Price | None = None) -> tuple[Offer, ...]:
    """Return the systems with their numbers of GPUs and ways to pay.

    Args:
        file: of the plan.
        base: folder that its paths are relative to.
        prices: of the list.
        otherwise: of systems of which nobody says another.
    """
    offers = []
    for system, choice in file.systems.items():
        name, node = published_name(system, base), gpus_per_node_of(system, base)
        listed = same_system(system, prices.prices, base) or same_name(name, prices.prices)
        price = choice.over(prices.prices[listed] if listed is not None else None)
        counts = gpu_counts(choice.gpus or file.gpus, node)
        place = str((base / system).resolve()) if is_system_file(system, base) else system
        offers.append(Offer(place, name, node, counts, _purchases(price.over(otherwise), name, file)))
    return tuple(offers)


def published_name(system: str, base: Path) -> str:
    """Return the name of a published system, however it is spelled, or of the file of one's own.

    Raises:
        ConfigError: there is no such system.
    """
    own, folder = find_system(system, base)
    return folder.name if own is None else str(own.name)


def same_system(name: str, among: Iterable[str], base: Path) -> str | None:
    """Return which of some names is that of the same system; None where none is."""
    known = list(among)
    spelled_alike = same_name(name, known)
    if spelled_alike is not None:
        return spelled_alike
    meant = _published_or_none(name, base)
    return None if meant is None else next((each for each in known if _published_or_none(each, base) == meant), None)


def _published_or_none(name: str, base: Path) -> str | None:
    try:
        return published_name(name, base)
    except ConfigError:
        return None


def _said_price(question: PlanQuestion) -> float | None:
    """Return the price of a GPU-hour that ``budget`` of the plan, or of its model's configuration, says."""
    for case in question.cases():
        try:
            return question.problem(case).budget.price_per_gpu_hour
        except (ConfigError, PublishedError):  # a precision that this system lacks, for instance; told by the searches
            continue
    return None


def _unused(question: PlanQuestion) -> tuple[str, ...]:
    """Return what the plan's file says without effect, a sentence each."""
    file, said = question.file, []
    if "gpus" in file.model_fields_set and all(choice.gpus is not None for choice in file.systems.values()):
        said.append("gpus has no effect: every system says its own.")
    if file.spot and not any(purchase.is_spot for offer in question.offers for purchase in offer.purchases):
        said.append("spot has no effect: no spot_price_per_gpu_hour of a system or of the price list is known.")
    return tuple(said)


def _check_prices(question: PlanQuestion) -> None:
    """Check that prices are known where a plan is to keep one.

    Raises:
        ConfigError: a system has none.
    """
    offers = zip(question.file.systems, question.offers, strict=True)
    without = [named for named, offer in offers if offer.purchases[0].price_per_gpu_hour is None]
    have = len(without) < len(question.offers)
    if without and (question.file.max_price is not None or have):
        give = " ".join(f"--price {named}=2.5" for named in without)
        raise ConfigError(
            f"{' and '.join(without)} {'has' if len(without) == 1 else 'have'} no price, so that plans cannot be "
            f"compared by it: give {give} of a GPU-hour, systems.{without[0]}.price_per_gpu_hour, or a list with prices"
        )
