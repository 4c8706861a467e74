"""Kinds of values that keys of a configuration have, each with its description in the key's annotation."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated

from pydantic import BeforeValidator, Field, ValidationInfo

from predictor.core.base.sizes import LARGEST


def whole_number(value: object, info: ValidationInfo) -> object:
    """Refuse values that pydantic would convert to a whole number without being one, and sizes beyond LARGEST."""
    if isinstance(value, bool | str):
        raise ValueError(f"expected a whole number, not {value!r}")
    largest = LARGEST.get(info.field_name or "")
    if largest is not None and isinstance(value, int | float) and value > largest:
        raise ValueError(f"more than {largest:,} is taken for a slip")
    return value


def words(value: object, names: Collection[str] = ()) -> object:
    """Return a mapping with its words in lower case, those of ``names`` aside; anything else as it is."""
    if not isinstance(value, dict):
        return value
    return {key: word.lower() if isinstance(word, str) and key not in names else word for key, word in value.items()}


def names(value: object) -> object:
    """Refuse what is no list of names; pydantic's message would speak of a tuple."""
    if isinstance(value, list | tuple) and all(isinstance(name, str) for name in value):
        return value
    raise ValueError("expected a list of names")


def absent_is_zero(value: object) -> object:
    """Return 0 for null."""
    return 0 if value is None else value


Count = Annotated[int, BeforeValidator(whole_number), Field(gt=0)]
Amount = Annotated[int, BeforeValidator(whole_number), Field(ge=0)]
Syncs = Annotated[int, BeforeValidator(whole_number), Field(ge=0)]
Switch = Annotated[bool, Field(strict=True)]
Probability = Annotated[float, Field(strict=True, ge=0.0, lt=1.0)]
