"""The base of every section of a configuration."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, model_validator

# Keys whose values are names, spelled as their owner does.
NAMES = ("system", "gpu")


class Section(BaseModel):
    """Base of every part of a configuration: closed and immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _in_lower_case(cls, values: object) -> object:
        """Take words in any case, names aside."""
        if not isinstance(values, dict):
            return values
        return {
            key: value.lower() if isinstance(value, str) and key not in NAMES else value
            for key, value in values.items()
        }
