"""``check``: predictions against limits that a training must keep, for continuous integration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from predictor.core.base.errors import ConfigError
from predictor.core.base.read_yaml import read_valid
from predictor.core.predict.prediction import StepPrediction
from predictor.core.step.memory_verdict import MEMORY_ERROR, MOST_RETRIES

FORMAT = "estimate-train-time/check/1"
NEARLY_FULL = (
    f"may not fit, within {MEMORY_ERROR:.0%} of the limit; where allocations are retried, a step takes up to "
    f"{MOST_RETRIES:.0%} longer"
).replace("%", " %")


def _number(value: object) -> object:
    if isinstance(value, bool | str):
        raise ValueError("expected a number")
    return value


Limit = Annotated[float, BeforeValidator(_number), Field(gt=0, le=1e18)]


class Limits(BaseModel):
    """Limits of one prediction; what is absent is not checked."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_step_s: Limit | None = Field(default=None, description="time of one step, in seconds")
    min_tokens_per_second: Limit | None = Field(default=None, description="of the whole run")
    min_mfu: Annotated[float, BeforeValidator(_number), Field(gt=0, le=1)] | None = Field(
        default=None, description="model FLOP/s utilisation, between 0 and 1"
    )
    max_memory_gib: Limit | None = Field(default=None, description="of the fullest GPU, in GiB")
    max_days: Limit | None = Field(default=None, description="of the training, evaluation not counted")
    max_gpu_hours: Limit | None = Field(default=None, description="of the training")
    max_price: Limit | None = Field(default=None, description="of the training, in the currency of its budget")
    min_probability: Annotated[float, BeforeValidator(_number), Field(gt=0, lt=1)] | None = Field(
        default=None, description="with which a plan keeps its deadline and its price; the plan's own if absent"
    )
    must_fit: bool = Field(default=True, strict=True, description="into a GPU's memory, where that is known")
    certain: bool = Field(
        default=False, strict=True, description="the worse end of the 90 % interval keeps the limits of time"
    )


class Entry(Limits):
    """A configuration, or a plan, of a budget file with its limits."""

    config: str = Field(min_length=1, description="configuration or plan, relative to the budget file")
    system: str | None = Field(default=None, description="published system, instead of the configuration's")


class BudgetFile(BaseModel):
    """A budget file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    checks: list[Entry] = Field(min_length=1, description="configurations and their limits")


@dataclass(frozen=True, slots=True)
class Rule:
    """One limit and what was predicted.

    Attributes:
        name: key of the limit.
        limit: its value.
        value: predicted; of ``certain`` limits the worse end of the 90 % interval.
        kept: whether the prediction keeps the limit.
        remark: beside a limit that is kept all the same.
    """

    name: str
    limit: float
    value: float
    kept: bool
    remark: str = ""


@dataclass(frozen=True, slots=True)
class Check:
    """The rules of one prediction.

    Attributes:
        name: of the prediction.
        rules: those that were asked for, in the order of ``Limits``.
        certain: whether times are the worse ends of their 90 % intervals.
        headline: sentences that stand below the time of the prediction.
    """

    name: str
    rules: tuple[Rule, ...]
    certain: bool = False
    headline: tuple[str, ...] = ()

    @property
    def kept(self) -> bool:
        """Return whether every rule is kept."""
        return all(rule.kept for rule in self.rules)


def read_budget(path: Path) -> BudgetFile:
    """Read a budget file.

    Raises:
        ConfigError: it does not parse, or a key or a value is not allowed.
    """
    return read_valid(path, BudgetFile, ConfigError)


def _values(prediction: StepPrediction, us: float) -> dict[str, float | None]:
    """Return what limits are compared with, by their keys; None where the configuration does not say enough.

    Args:
        prediction: of a step.
        us: that the step takes.
    """
    step, whole = prediction.step, prediction.budget
    slower = us / step.us
    is_training = whole.goodput is not None
    return {
        "max_step_s": us / 1e6,
        "min_tokens_per_second": prediction.tokens_per_second / slower,
        "min_mfu": prediction.mfu / slower,
        "max_memory_gib": prediction.memory_gib,
        "max_days": whole.days * slower if is_training else None,
        "max_gpu_hours": whole.gpu_hours * slower if is_training else None,
        "max_price": whole.price * slower if is_training and whole.price is not None else None,
    }


def check(prediction: StepPrediction, limits: Limits) -> Check:
    """Compare a prediction with limits.

    Raises:
        ConfigError: a limit needs a budget that the configuration lacks, or is one of plans.
    """
    if limits.min_probability is not None:
        raise ConfigError(
            f"{prediction.name}: min_probability is a limit of plans (docs/plan.md), not of a configuration"
        )
    rules: list[Rule] = []
    values = _values(prediction, prediction.step.high_us if limits.certain else prediction.step.us)
    for name, value in values.items():
        limit = getattr(limits, name)
        if limit is None:
            continue
        if value is None:
            needs = "budget.train_tokens" + (" and budget.price_per_gpu_hour" if name == "max_price" else "")
            raise ConfigError(f"{prediction.name}: {name} needs {needs} in the configuration")
        rules.append(Rule(name, limit, value, value >= limit if name.startswith("min_") else value <= limit))
    if limits.must_fit and prediction.fit is not None:
        memory = prediction.loaded.system.hardware.gpu.memory_gib
        assert memory is not None
        kept = prediction.fits is True if limits.certain else prediction.fits is not False
        remark = NEARLY_FULL if prediction.fits is None else ""
        rules.append(Rule("must_fit", memory.value, prediction.memory_gib, kept, remark))
    if not rules:
        raise ConfigError(f"{prediction.name}: nothing to check; give a limit such as max_step_s, or a budget file")
    return Check(prediction.name, tuple(rules), limits.certain, prediction.headline)


def render(checks: Sequence[Check]) -> str:
    """Return the checks as lines: the rule, its limit, what was predicted."""
    lines = []
    for checked in checks:
        lines.append(f"{'ok  ' if checked.kept else 'FAIL'}  {checked.name}")
        lines += [f"      {sentence}" for sentence in checked.headline]
        lines += [
            f"      {'ok  ' if rule.kept else 'FAIL'}  {rule.name:22}limit {rule.limit:>12,.6g}   "
            f"{'at worst ' if checked.certain else 'predicted'} {rule.value:>12,.6g}   {rule.remark}".rstrip()
            for rule in checked.rules
        ]
    return "\n".join(lines)


def to_json(checks: Sequence[Check]) -> dict[str, Any]:
    """Return what ``check --json`` prints."""
    return {
        "format": FORMAT,
        "kept": all(checked.kept for checked in checks),
        "checks": [
            {
                "name": checked.name,
                "kept": checked.kept,
                "certain": checked.certain,
                "headline": list(checked.headline),
                "rules": [
                    {
                        "rule": rule.name,
                        "limit": rule.limit,
                        "predicted": rule.value,
                        "kept": rule.kept,
                    }
                    for rule in checked.rules
                ],
            }
            for checked in checks
        ],
    }
