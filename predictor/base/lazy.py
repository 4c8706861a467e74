"""A property that is computed when first asked for, and then kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

Owner = TypeVar("Owner")
Value = TypeVar("Value")


class lazy(Generic[Owner, Value]):  # noqa: N801 (used as a decorator, like property)
    """``functools.cached_property`` without the lock that it takes before Python 3.12.

    The value replaces the property in the object's ``__dict__``, so the class must have one, and must be immutable.
    Threads that ask at once may each compute it, and find the same.
    """

    def __init__(self, compute: Callable[[Owner], Value]) -> None:
        """Wrap a method."""
        self._compute = compute
        self._name = compute.__name__
        self.__doc__ = compute.__doc__

    def __get__(self, instance: Owner, owner: type[Owner]) -> Value:
        """Compute the value; a second access does not come here."""
        value = instance.__dict__[self._name] = self._compute(instance)
        return value
