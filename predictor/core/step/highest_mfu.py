"""The highest MFU of published runs by GPU, precision and kind, beside which a prediction above it is said to be so.

``highest_mfu.yaml`` has a row for every GPU, precision of matrix products and kind of model (dense, or with experts) of
which others published steps. Its MFU is this project's count of model FLOP over the measured step and the peak that a
prediction of the run divides by.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from predictor.core.base.read_yaml import read_mapping
from predictor.core.base.words import counted
from predictor.core.step.prediction import Prediction
from predictor.core.workload.low_precision import product_precision
from predictor.core.workload.software import Framework

DATA = Path(__file__).with_name("highest_mfu.yaml")


class HighestMfu(BaseModel):
    """The highest MFU among the published runs of one GPU, precision and kind of model."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    gpu: str
    precisions: tuple[str, ...] = Field(
        min_length=1, description="of the products; those that run at one rate together"
    )
    rows: int = Field(gt=0, description="published runs")
    experts: bool = Field(description="they are of mixtures of experts, which reach another MFU than dense models")
    mfu: float = Field(gt=0, lt=1, description="of the highest of them")
    framework: Framework = Field(description="of that run, as the next two")
    num_gpus: int = Field(gt=0)
    source: str

    def sentence(self, mfu: float) -> str:
        """Return what is said of a higher MFU."""
        runs = f"none of {self.rows:,} published runs" if self.rows > 1 else "the only published run"
        model = " with experts" if self.experts else " of dense models"
        kind = f"{model} on this GPU in {' or '.join(self.precisions)}"
        where = f"{self.framework} on {counted(self.num_gpus, 'GPU')}, {self.source.partition('@')[0]}"
        return f"MFU {mfu:.1%}: {runs}{kind} {'exceeds' if self.rows > 1 else 'reached'} {self.mfu:.1%} ({where})."


class _Table(BaseModel):
    """All rows."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    highest: tuple[HighestMfu, ...]


@lru_cache(maxsize=1)
def published_mfus() -> tuple[HighestMfu, ...]:
    """Read the table, once per process."""
    return _Table.model_validate(read_mapping(DATA)).highest


def highest_of(prediction: Prediction) -> HighestMfu | None:
    """Return the highest published MFU of a prediction's GPU, precision and kind; None where no run is published."""
    precision, experts = product_precision(prediction.run), prediction.run.model.experts is not None
    alike = (row for row in published_mfus() if row.gpu == prediction.gpu and row.experts == experts)
    return max((row for row in alike if precision in row.precisions), key=lambda row: row.mfu, default=None)


def mfu_note(prediction: Prediction) -> str | None:
    """Return a sentence on an MFU above every published run's; None of any other."""
    highest = highest_of(prediction)
    return None if highest is None or prediction.mfu <= highest.mfu else highest.sentence(prediction.mfu)


def mfu_entry(prediction: Prediction) -> dict[str, Any] | None:
    """Return the highest published MFU as an entry of a document; None where no run is published."""
    highest = highest_of(prediction)
    if highest is None:
        return None
    return {**highest.model_dump(mode="json", exclude={"gpu"}), "is_exceeded": prediction.mfu > highest.mfu}
