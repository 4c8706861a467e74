"""The base of every section of a configuration, and the keys of sections."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any, get_args, get_type_hints

from pydantic import BaseModel, ConfigDict, model_validator

from predictor.core.base.fields import words

# Keys whose values are names, spelled as their owner does.
NAMES = ("system", "gpu")


class Section(BaseModel):
    """Base of every part of a configuration: closed and immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _in_lower_case(cls, values: object) -> object:
        """Take words in any case, names aside."""
        return words(values, NAMES)


def section_keys(section: type) -> dict[str, Any]:
    """Return the keys of a section, each with its type; those that it must have first.

    Sizes of the model's parts are frozen dataclasses, which the sections above check as they are read.
    """
    if issubclass(section, BaseModel):
        ordered = sorted(section.model_fields.items(), key=lambda named: not named[1].is_required())
        return {name: field.annotation for name, field in ordered}
    assert is_dataclass(section)
    hints = get_type_hints(section)
    return {field.name: hints[field.name] for field in fields(section)}


def values_of(section: Section, keys: type[Any]) -> dict[str, Any]:
    """Return the values of a section's keys that stand in a dataclass which the section inherits."""
    return {field.name: getattr(section, field.name) for field in fields(keys)}


def section_in(section: type, key: str) -> type | None:
    """Return the section that a key of a section holds; None where it holds a value."""
    kind = section_keys(section).get(key)
    choices = [each for each in (kind, *get_args(kind)) if isinstance(each, type)]
    return next((each for each in choices if issubclass(each, BaseModel) or is_dataclass(each)), None)
