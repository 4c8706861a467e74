"""A result that is a value or an error; type checkers see which after ``isinstance``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

Value = TypeVar("Value")
Failure = TypeVar("Failure")


@dataclass(frozen=True, slots=True)
class Success(Generic[Value]):
    """It worked, and ``value`` came of it."""

    value: Value


@dataclass(frozen=True, slots=True)
class Error(Generic[Failure]):
    """It failed, and ``error`` says why."""

    error: Failure


# Result[int, str] is Success[int] | Error[str].
Result = Success[Value] | Error[Failure]
