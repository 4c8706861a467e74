"""Base of every section: an immutable pydantic dataclass whose errors are one line, however it is built."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar, dataclass_transform, get_args, get_origin

from pydantic import ConfigDict, Field
from pydantic import ValidationError as PydanticError
from pydantic.dataclasses import dataclass

from model_training_framework.config.explain import explained
from model_training_framework.config.fields import file_values
from model_training_framework.config.schema import register

AnySection = TypeVar("AnySection", bound="Section")


def _keys(content: object) -> object:
    """Return any mapping as a dictionary, which is what pydantic takes for one."""
    return dict(content) if isinstance(content, Mapping) else content


def _is_container(annotation: object) -> bool:
    """Return whether a type is, or may be, a list or a mapping."""
    return get_origin(annotation) in (list, dict) or any(_is_container(part) for part in get_args(annotation))


class Section:
    """A part of a configuration.

    Attributes:
        dotted: where in a configuration it is; empty for the whole.
        key_names: names of its keys, in the order of their definition.
        changeable: those of them that may hold a list or a mapping, which can be changed in place.
    """

    __slots__ = ()
    dotted: ClassVar[str] = ""
    key_names: ClassVar[tuple[str, ...]] = ()
    changeable: ClassVar[tuple[str, ...]] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return keys and values as YAML and JSON hold them; nothing in it belongs to the section."""
        return {
            key: value.to_dict() if isinstance(value, Section) else file_values(value)
            for key, value in ((key, getattr(self, key)) for key in self.key_names)
        }

    def copied(self: AnySection) -> AnySection:
        """Return an equal section, for one without sections within, that shares no list and no mapping with this."""
        if not self.changeable:
            return self
        twin = object.__new__(type(self))
        for key in self.key_names:
            value = getattr(self, key)
            object.__setattr__(twin, key, file_values(value) if key in self.changeable else value)
        return twin

    @classmethod
    def from_dict(cls: type[AnySection], content: Mapping[str, Any]) -> AnySection:
        """Return the section that keys and values make; nothing in it belongs to them.

        Raises:
            ValidationError: a key is unknown or missing, or a value is not allowed; a ValueError.
        """
        validator: Any = cls.__pydantic_validator__  # type: ignore[attr-defined]
        try:
            section: AnySection = validator.validate_python(content if type(content) is dict else _keys(content))
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
        finished: Any = dataclass(frozen=True, slots=True, config=ConfigDict(extra="forbid"))(cls)
        finished.dotted, finished.key_names = at, register(at, finished)
        types = {key: field.annotation for key, field in finished.__pydantic_fields__.items()}
        finished.changeable = tuple(key for key, annotation in types.items() if _is_container(annotation))
        checked: Callable[..., None] = finished.__init__

        def __init__(self: AnySection, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            try:
                checked(self, *args, **kwargs)
            except PydanticError as error:
                raise explained(error, at) from None

        finished.__init__ = __init__
        made_of: type[AnySection] = finished
        return made_of

    return made
