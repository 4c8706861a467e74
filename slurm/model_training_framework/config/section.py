"""What every section is: an immutable pydantic dataclass whose errors are one line, however it is built."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar, dataclass_transform

from pydantic import ConfigDict, Field, TypeAdapter
from pydantic import ValidationError as PydanticError
from pydantic.dataclasses import dataclass
from pydantic_core import ArgsKwargs

from model_training_framework.config.explain import explained
from model_training_framework.config.fields import plain
from model_training_framework.config.schema import register

AnySection = TypeVar("AnySection", bound="Section")


class Section:
    """A part of a configuration.

    Attributes:
        dotted: where in a configuration it is; empty for the whole.
        keys: names of its keys, in the order of their definition.
    """

    __slots__ = ()
    dotted: ClassVar[str] = ""
    keys: ClassVar[tuple[str, ...]] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return keys and values as YAML and JSON hold them; nothing in it belongs to the section."""
        return {
            key: value.to_dict() if isinstance(value, Section) else plain(value)
            for key, value in ((key, getattr(self, key)) for key in self.keys)
        }

    @classmethod
    def from_dict(cls: type[AnySection], content: Mapping[str, Any]) -> AnySection:
        """Return the section that keys and values make; nothing in it belongs to them.

        Raises:
            ValidationError: a key is unknown or missing, or a value is not allowed; a ValueError.
        """
        content = dict(content) if isinstance(content, Mapping) else content
        try:
            section: AnySection = cls.__pydantic_validator__.validate_python(content)  # type: ignore[attr-defined]
        except PydanticError as error:
            raise explained(error, cls.dotted) from None
        return section


@dataclass_transform(frozen_default=True, field_specifiers=(Field,))
def section(at: str) -> Callable[[type[AnySection]], type[AnySection]]:
    """Make a class a section.

    Args:
        at: where in a configuration it is, such as ``model``; empty for the whole.
    """

    def made(cls: type[AnySection]) -> type[AnySection]:
        finished = dataclass(frozen=True, slots=True, config=ConfigDict(extra="forbid"))(cls)
        finished.dotted, finished.keys = at, register(at, finished)
        validator = TypeAdapter(finished).validator

        def __init__(self: AnySection, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            try:
                validator.validate_python(ArgsKwargs(args, kwargs), self_instance=self)
            except PydanticError as error:
                raise explained(error, at) from None

        finished.__init__ = __init__  # type: ignore[assignment]
        return finished

    return made
