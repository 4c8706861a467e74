"""Values of evaluated Python code beside Python's own constants, lists and dictionaries."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from predictor.formats.python_source.module import Class, Function

ATOMS = (str, int, float, bool, type(None))


@dataclass(frozen=True, slots=True)
class Unknown:
    """A value that cannot be told without running the code.

    Attributes:
        why: file, line and what stands there.
    """

    why: str


@dataclass(frozen=True, slots=True)
class External:
    """A name from outside the source tree, such as torch.bfloat16."""

    name: str


@dataclass(slots=True)
class Record:
    """An object: what it was made by, and its attributes as far as the code sets them.

    Attributes:
        kind: name of its class, or of the function outside the tree that returned it.
        fields: attributes.
        arguments: positional arguments of the call that made it.
        line: file and line of that call.
        of: object whose method returned it.
    """

    kind: str
    fields: dict[str, Any] = field(default_factory=dict)
    arguments: list[Any] = field(default_factory=list)
    line: str = ""
    of: Any = None

    @property
    def short_kind(self) -> str:
        """Return the name without its module."""
        return self.kind.rpartition(".")[2]


@dataclass(frozen=True, slots=True)
class Method:
    """A method that is looked up on a value."""

    of: Any
    name: str


def copied(value: Any) -> Any:
    """Return a value that can be changed without changing the original; functions and classes stay."""
    if isinstance(value, list):
        return [copied(item) for item in value]
    if isinstance(value, dict):
        return {key: copied(item) for key, item in value.items()}
    if isinstance(value, Record):
        fields = {key: copied(item) for key, item in value.fields.items()}
        return Record(value.kind, fields, copied(value.arguments), value.line, value.of)
    return deepcopy(value) if isinstance(value, set) else value


def unknowns(*values: Any) -> Unknown | None:
    """Return the first value that is unknown."""
    return next((value for value in values if isinstance(value, Unknown)), None)


def truth(value: Any) -> bool | None:
    """Return whether a value counts as true; None where it is unknown."""
    if is_open(value) and not isinstance(value, list | tuple | dict | set):
        return None
    return True if isinstance(value, Record | Function | Class | Method) else bool(value)


def is_open(value: Any) -> bool:
    """Return whether a value, or a part of it, comes from code that is not evaluated.

    An object of a class from outside is known as far as it is set; what a function from outside returns is not.
    """
    if isinstance(value, Record):
        return not value.short_kind[:1].isupper()
    if isinstance(value, dict):
        return any(is_open(part) for part in (*value.keys(), *value.values()))
    if isinstance(value, list | tuple | set):
        return any(is_open(part) for part in value)
    return isinstance(value, Unknown | External | Method)
