"""A property that is computed on first use and cached."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

Value = TypeVar("Value")


class lazy(Generic[Value]):  # noqa: N801 (used as a decorator, like property)
    """``functools.cached_property`` without the lock that it takes before Python 3.12.

    The cached value shadows the property in the object's ``__dict__``, which the class must have; the attributes it
    depends on must not change. Concurrent threads may each compute it, with the same result.
    """

    def __init__(self, compute: Callable[[Any], Value]) -> None:
        """Wrap a method."""
        self._compute = compute
        self._name = compute.__name__
        self.__doc__ = compute.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> lazy[Value]: ...

    @overload
    def __get__(self, instance: object, owner: type) -> Value: ...

    def __get__(self, instance: object | None, owner: type) -> lazy[Value] | Value:
        """Compute the value; a second access does not come here."""
        if instance is None:
            return self
        value = instance.__dict__[self._name] = self._compute(instance)
        return value
