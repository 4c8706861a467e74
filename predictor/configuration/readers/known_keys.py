"""Keys that a reader does not use: without effect on cost, refused, or worth a note."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from predictor.base.errors import ConfigError
from predictor.base.read_yaml import first_problem, read_mapping

FOLDER = Path(__file__).resolve().parent / "keys"


class KnownKeys(BaseModel):
    """The keys of one format."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    irrelevant: frozenset[str] = Field(default=frozenset(), description="they change no cost of a training step")
    irrelevant_prefixes: tuple[str, ...] = Field(default=(), description="what begins so changes no cost either")
    refused: dict[str, str] = Field(default={}, description="not modelled, by key with the reason and the way out")
    noted: dict[str, str] = Field(default={}, description="left out of a prediction, by key with the sentence for it")
    noted_off: dict[str, str] = Field(default={}, description="the same, where the value is false")
    unsupported: dict[str, str] = Field(default={}, description="models that cannot be predicted, with the reason")

    def is_irrelevant(self, key: str) -> bool:
        """Return whether a key changes no cost."""
        return key in self.irrelevant or key.startswith(self.irrelevant_prefixes)


@cache
def known_keys(name: str) -> KnownKeys:
    """Return what is known of a format's keys."""
    path = FOLDER / f"{name}.yaml"
    try:
        return KnownKeys.model_validate(read_mapping(path))
    except ValidationError as error:
        raise ConfigError(f"{path}: {first_problem(error)}") from None
