"""Schema shared by all record files."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, ValidationError

from predictor.core.base.errors import ConfigError
from predictor.core.base.read_yaml import first_problem


class RecordError(ConfigError):
    """A record that is damaged, or that does not belong with the others of its run."""


class RecordModel(BaseModel):
    """Base of every part of a record: closed and immutable, and every number finite."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @classmethod
    def read(cls, path: Path, is_not: str) -> Self:
        """Read a record from a JSON file.

        Args:
            path: of the file.
            is_not: what an error says of a file that holds something else, such as ``is no verified run``.

        Raises:
            RecordError: the file is not there, damaged, or holds something else.
        """
        try:
            return cls.model_validate_json(path.read_bytes())
        except OSError as error:
            raise RecordError(f"{path}: {error.strerror}") from None
        except ValidationError as error:
            raise RecordError(f"{path} {is_not}: {first_problem(error)}") from None
