"""Groups of published training steps with the errors of their predictions, read from ``published_runs.yaml``."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from predictor.base.read_yaml import read_mapping

DATA = Path(__file__).with_name("published_runs.yaml")


class Group(BaseModel):
    """Published steps of one source, predicted and compared."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(min_length=1, description="framework and GPU")
    gpus: tuple[str, ...] = Field(min_length=1, description="names of the GPUs with the chip that the rows ran on")
    rows: int = Field(gt=0, description="measured steps compared")
    mean_error_percent: float = Field(gt=-100, description="mean of predicted / measured − 1, in percent")
    inside_interval_percent: float = Field(ge=0, le=100, description="rows inside their 90 % interval, in percent")
    median_interval_factor: float | None = Field(default=None, gt=1, description="median of high end / low end")
    source: str = Field(min_length=1, description="where the measured steps were published")

    @property
    def summary(self) -> str:
        """Return error, group, rows and interval in words."""
        side = "short" if self.mean_error_percent < 0 else "long"
        factor = self.median_interval_factor
        width = "" if factor is None else f", its ends a median factor of {factor:g} apart"
        return (
            f"{abs(self.mean_error_percent):g} % too {side} for {self.name} ({self.rows} rows, "
            f"{self.inside_interval_percent:g} % inside their 90 % interval{width})"
        )


class PublishedRuns(BaseModel):
    """All groups by the kind of run."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    sharded: tuple[Group, ...] = Field(min_length=1, description="ZeRO-2/3 or FSDP with traffic beside computing")
    data_sheet: tuple[Group, ...] = Field(min_length=1, description="on systems known from a data sheet")


@lru_cache(maxsize=1)
def published_runs() -> PublishedRuns:
    """Read the groups, once per process."""
    return PublishedRuns.model_validate(read_mapping(DATA))
