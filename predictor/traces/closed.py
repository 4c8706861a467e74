"""What the records on disk have in common."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from predictor.base.errors import ConfigError


class RecordError(ConfigError):
    """A record that is damaged, or that does not belong with the others of its run."""


class Closed(BaseModel):
    """Base of every part of a record: closed and immutable, and every number finite."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
