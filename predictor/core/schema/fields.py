"""Kinds of values that sections of a configuration have."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo

from predictor.core.base.sizes import LARGEST
from predictor.core.hardware.hardware_range import check_range


def whole_number(value: object, info: ValidationInfo) -> object:
    """Refuse values that pydantic would convert to a whole number without being one, and sizes beyond LARGEST."""
    if isinstance(value, bool | str):
        raise ValueError(f"expected a whole number, not {value!r}")
    largest = LARGEST.get(info.field_name or "")
    if largest is not None and isinstance(value, int | float) and value > largest:
        raise ValueError(f"more than {largest:,} is taken for a slip")
    return value


def names(value: object) -> object:
    """Refuse what is no list of names; pydantic's message would speak of a tuple."""
    if isinstance(value, list | tuple) and all(isinstance(name, str) for name in value):
        return value
    raise ValueError("expected a list of names")


def hardware_number(value: float, info: ValidationInfo) -> float:
    """Refuse a number of the hardware that no machine has."""
    check_range(info.field_name or "", value)
    return value


Count = Annotated[int, BeforeValidator(whole_number), Field(gt=0)]
Amount = Annotated[int, BeforeValidator(whole_number), Field(ge=0)]
Syncs = Annotated[int, BeforeValidator(whole_number), Field(ge=0)]
Switch = Annotated[bool, Field(strict=True)]
HardwareNumber = Annotated[float, Field(strict=True), AfterValidator(hardware_number)]
Probability = Annotated[float, Field(strict=True, ge=0.0, lt=1.0)]
