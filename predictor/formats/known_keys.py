"""Keys that a reader does not use: without effect on cost, refused, or worth a note."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from predictor.core.base.errors import ConfigError
from predictor.core.base.read_yaml import read_valid

FOLDER = Path(__file__).resolve().parent / "keys"


class KnownKeys(BaseModel):
    """The keys of one format."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    irrelevant: frozenset[str] = Field(default=frozenset(), description="without effect on the cost of a step")
    irrelevant_prefixes: tuple[str, ...] = Field(default=(), description="beginnings of further such keys")
    read: frozenset[str] = Field(default=frozenset(), description="what the reader itself uses, where it says so")
    refused: dict[str, str] = Field(default={}, description="not modelled: reason and remedy by key")
    refused_elsewhere: dict[str, str] = Field(
        default={}, description="not modelled where the format's family has no such key: reason and remedy by key"
    )
    noted: dict[str, str] = Field(default={}, description="left out of a prediction: note by key")
    noted_off: dict[str, str] = Field(default={}, description="left out where the value is false: note by key")
    unsupported: dict[str, str] = Field(default={}, description="models that cannot be predicted: reason by name")

    def is_irrelevant(self, key: str) -> bool:
        """Return whether a key changes no cost."""
        return key in self.irrelevant or key.startswith(self.irrelevant_prefixes)


@cache
def known_keys(name: str) -> KnownKeys:
    """Return the known keys of a format."""
    return read_valid(FOLDER / f"{name}.yaml", KnownKeys, ConfigError)
