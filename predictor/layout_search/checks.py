"""Checks of a search's amounts: what is above nothing, what is one of several, and what needs something beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from predictor.core.base.errors import ConfigError
from predictor.core.base.sizes import whole
from predictor.core.schema.sections import BudgetSection
from predictor.layout_search.question import SearchQuestion
from predictor.layout_search.report.search_bill import Limits

LARGEST_LIMIT = 10**9
LARGEST_AMOUNT = 1e18
DEAREST = 1e6  # as budget.price_per_gpu_hour of a configuration


def limits(**given: int | None) -> dict[str, int]:
    """Return the limits that were given, as whole numbers.

    Raises:
        ConfigError: one is not possible.
    """
    return {
        key: whole(f"--{key.replace('_', '-')}", value, largest=LARGEST_LIMIT)
        for key, value in given.items()
        if value is not None
    }


def chosen(option: str, given: Any, legal: Sequence[Any]) -> tuple[Any, ...]:
    """Return the values of an option, one or several; all legal values where it is not given.

    Raises:
        ConfigError: one is not legal.
    """
    if given is None:
        return tuple(legal)
    values = tuple(given) if isinstance(given, list | tuple) else (given,)
    for value in values:
        if value not in legal:
            raise ConfigError(f"{option} is {value}; expected {', '.join(map(str, legal))}")
    return values or tuple(legal)


def positive(**given: float | None) -> None:
    """Check numbers that must be more than nothing.

    Raises:
        ConfigError: one is no number, or not above zero.
    """
    for key, value in given.items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is not None and not (is_number and 0 < value <= LARGEST_AMOUNT):
            option = f"--{key.replace('_', '-')}"
            raise ConfigError(f"{option} is {value!r}; expected a number above 0, up to {LARGEST_AMOUNT:g}")


def check_limits(budget: BudgetSection, kept: Limits, question: SearchQuestion) -> None:
    """Check that what a limit or a price is about is said, by an option or by the model's configuration.

    Raises:
        ConfigError: the tokens of the training are not, or the price of a GPU-hour.
    """
    if budget.train_tokens is None:
        if kept.hours is not None:
            raise ConfigError("--max-hours and --max-days need --train-tokens: how many tokens does the training take?")
        if kept.price is not None:
            raise ConfigError("--max-price needs --train-tokens, and --price of a GPU-hour")
        if question.price is not None:
            raise ConfigError("--price needs --train-tokens: how many tokens does the training take?")
    if kept.price is not None and budget.price_per_gpu_hour is None:
        raise ConfigError("--max-price needs --train-tokens, and --price of a GPU-hour")


def checked_price(price: float | None) -> None:
    """Check the price of a GPU-hour, in any currency.

    Raises:
        ConfigError: it is no number, or not possible.
    """
    is_number = isinstance(price, int | float) and not isinstance(price, bool)
    if price is not None and not (is_number and 0 <= price <= DEAREST):
        raise ConfigError(f"--price is {price!r}; expected a number from 0 to {DEAREST:g}, of a GPU-hour")
