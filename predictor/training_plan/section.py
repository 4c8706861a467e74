"""The file of a plan: what is trained, what may be chosen, and by when and for how much it is to be done."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from predictor.core.base.errors import ConfigError, nearest
from predictor.core.base.fields import Count, Switch
from predictor.core.base.read_yaml import first_error, read_keys, read_mapping, reason, shown
from predictor.core.schema.input_kind import is_plan
from predictor.core.schema.merging import merged
from predictor.core.schema.sections import BudgetSection
from predictor.core.workload.run_choices import GemmRecipe
from predictor.training_plan.amounts import Range, as_range
from predictor.training_plan.prices import Price

# fp8 alone is what Transformer Engine and Megatron-LM (--fp8-recipe) take without a recipe: delayed scaling.
PRECISIONS = {"bf16": None, "fp16": None, "fp32": None, "fp8": GemmRecipe.FP8_DELAYED} | {
    str(recipe): recipe for recipe in GemmRecipe
}
NO_DRAWS, MOST_DRAWS = 100, 100_000


class Part(BaseModel):
    """Base of the file's parts: closed and immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)


def _listed(value: object) -> object:
    """Return one value as a list of it."""
    return value if isinstance(value, list | tuple) else [value]


def _precision(value: object) -> str:
    name = str(value).lower()
    if name not in PRECISIONS:
        raise ValueError(f"expected {', '.join(PRECISIONS)}")
    return name


def _amount(value: object) -> object:
    """Return a whole number of YAML as the number that it is; text and switches are refused."""
    if isinstance(value, bool | str):
        raise ValueError("expected a number, such as 1.5e12")
    return float(value) if isinstance(value, int) else value


def _probability(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1:
        raise ValueError("expected a probability between 0 and 1, such as 0.8")
    return value


def _deadline(value: object) -> object:
    """Return a deadline: a day, or a number of days."""
    if isinstance(value, str):
        try:
            return date.fromisoformat(value) if "-" in value else float(value)
        except ValueError:
            raise ValueError("expected a day, such as 2027-03-03, or a number of days") from None
    if isinstance(value, bool) or not isinstance(value, int | float | date):
        raise ValueError("expected a day, such as 2027-03-03, or a number of days")
    if isinstance(value, int | float) and not 0 < value <= 36_500:
        raise ValueError("expected a number of days above 0, up to 36,500")
    return float(value) if isinstance(value, int) else value


def _day(value: object) -> object:
    if isinstance(value, str):
        try:
            return date.fromisoformat(value)
        except ValueError:
            raise ValueError("expected a day, such as 2026-12-01") from None
    return value


Sizes = Annotated[Range, BeforeValidator(as_range)]
Amount = Annotated[float, BeforeValidator(_amount), Field(gt=0, le=1e18)]


class SystemChoice(Price):
    """A system that may be chosen."""

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)

    gpus: Sizes | None = Field(default=None, description="how many; those of the plan if absent")

    @model_validator(mode="before")
    @classmethod
    def _of_sizes(cls, value: object) -> object:
        """Take sizes alone for the mapping that they stand for, and whole numbers for prices."""
        keys = _in_full(value)
        assert isinstance(keys, dict)
        return {key: float(each) if key != "gpus" and type(each) is int else each for key, each in keys.items()}


class RampUp(Part):
    """A batch that grows at the beginning, by the same number of samples after every so many, as Megatron-LM's does."""

    from_batch_size: Count = Field(description="samples of the first step")
    tokens: Amount = Field(description="trained until the whole batch is reached")


class Evaluation(Part):
    """Passes over held-out text, which train nothing."""

    every_steps: Count = Field(description="steps between two evaluations")
    tokens: Amount = Field(description="of one evaluation")


class Storage(Part):
    """Checkpoints that are kept until the end of the training."""

    price_per_gb_month: Amount = Field(description="of storage; a month has 730 hours")
    kept_checkpoints: Count = Field(default=1, description="at a time")


def _systems(value: object) -> object:
    """Take a name, or a list of them, for a mapping without sizes."""
    if isinstance(value, str):
        return {value: {}}
    return {str(name): {} for name in value} if isinstance(value, list | tuple) else value


def choices(content: dict[str, Any]) -> dict[str, Any]:
    """Return the systems of a plan's content, each with its keys."""
    systems = _systems(content.get("systems") or {})
    return {name: _in_full(choice) for name, choice in systems.items()} if isinstance(systems, dict) else {}


def laid_over(content: dict[str, Any], keys: dict[str, Any]) -> dict[str, Any]:
    """Return a plan's content with other keys laid over it, system by system."""
    return merged({**content, "systems": choices(content)} if "systems" in keys and choices(content) else content, keys)


def as_keys(changes: Sequence[str]) -> dict[str, str]:
    """Return changes, each KEY=VALUE, as keys with their values."""
    return {key.strip(): value for key, _, value in (text.partition("=") for text in changes)}


def _in_full(choice: object) -> object:
    """Return a system's choice as a mapping, where it is sizes alone."""
    if choice is None or isinstance(choice, dict):
        return choice or {}
    return {"gpus": choice}


class PlanFile(Part):
    """A plan's file; every key is also an option of ``plan``."""

    model: str | dict[str, Any] = Field(description="preset, configuration, or file of another tool")
    train_tokens: Amount | None = Field(default=None, description="tokens to train on; the model's file's if absent")
    systems: Annotated[dict[str, SystemChoice], BeforeValidator(_systems)] = Field(
        min_length=1, description="by name, each with its GPUs and its price"
    )
    gpus: Sizes = Field(default=Range(most=1024), description="of systems that say none: a number, a list or a range")
    prices: str | None = Field(default=None, description="price list: a YAML file, or a catalogue of SkyPilot (.csv)")
    region: str | None = Field(default=None, description="of the catalogue; the cheapest if absent")
    paid_spares: Switch = Field(default=False, description="spare nodes are paid for as well")
    spot: Switch = Field(default=False, description="spot instances may be chosen as well")
    interruptions_per_node_day: float | None = Field(
        default=None, strict=True, gt=0, le=1440, description="of spot instances for which none is said"
    )
    currency: str = Field(default="$", max_length=10, description="behind prices")
    start: Annotated[date | None, BeforeValidator(_day)] = Field(default=None, description="first day; today if absent")
    deadline: Annotated[date | float | None, BeforeValidator(_deadline)] = Field(
        default=None, description="last day, or a number of days"
    )
    max_price: Amount | None = Field(default=None, description="the most that the training may cost")
    max_power_w: Amount | None = Field(default=None, description="watts of all GPUs together, which share it alike")
    probability: Annotated[float, BeforeValidator(_probability)] = Field(
        default=0.8, description="with which both are to be kept"
    )
    precisions: Annotated[tuple[Annotated[str, BeforeValidator(_precision)], ...], BeforeValidator(_listed)] = Field(
        default=(), description="of the products; the model's file's if absent"
    )
    global_batch_size: Sizes | None = Field(default=None, description="samples of a step: a number, a list or a range")
    global_batch_tokens: Sizes | None = Field(default=None, description="the same in tokens")
    critical_batch_tokens: Amount | None = Field(
        default=None, description="batch at which twice the tokens of a tiny one reach the same loss"
    )
    sequence_length: Count | None = Field(default=None, description="tokens of a sample; the model's if absent")
    framework: str | None = Field(default=None, description="that runs the layout, as search --framework takes it")
    ramp_up: RampUp | None = None
    evaluation: Evaluation | None = None
    storage: Storage | None = None
    budget: dict[str, Any] = Field(default={}, description="keys of a configuration's budget: failures, checkpoints")
    set: dict[str, Any] = Field(default={}, description="keys of the configuration, and numbers of the hardware")
    draws: int = Field(
        default=2000, strict=True, ge=NO_DRAWS, le=MOST_DRAWS, description="simulated trainings of a plan"
    )
    seed: int = Field(default=0, strict=True, ge=0, description="of the draws")


def known_keys(location: tuple[str | int, ...]) -> list[str]:
    """Return the keys that are legal where an error lies."""
    inside: dict[str, type[BaseModel]] = {
        "systems": SystemChoice,
        "ramp_up": RampUp,
        "evaluation": Evaluation,
        "storage": Storage,
    }
    return list((inside[str(location[0])] if len(location) > 1 else PlanFile).model_fields)


def validated(content: dict[str, Any], where: str) -> PlanFile:
    """Check the content of a plan.

    Args:
        content: keys and values.
        where: begins a message, such as the file's name.

    Raises:
        ConfigError: a key is unknown or missing, or a value is not allowed.
    """
    budget = content.get("budget")
    keys = map(str, budget) if isinstance(budget, dict) else ()  # whatever else it is, the validation says so
    unknown = next((key for key in keys if key not in BudgetSection.model_fields), None)
    if unknown is not None:
        known = list(BudgetSection.model_fields)
        raise ConfigError(
            f"{where}budget.{unknown} is not a known key.{nearest(unknown, known)} Known: {', '.join(known)}"
        )
    try:
        return PlanFile.model_validate(content)
    except ValidationError as error:
        first = first_error(error)
        location = tuple(part for part in first["loc"] if not str(part).startswith(("function-", "str", "dict")))
        name = ".".join(map(str, location))
        if first["type"] == "missing":
            way_out = {
                "systems": "name one with its GPUs: --system H100, or systems: {H100: up to 512}",
                "model": "a preset (list-presets) or a file: --model llama3-8b",
            }
            raise ConfigError(f"{where}{name} is missing; {way_out.get(name, 'it is required')}") from None
        if first["type"] == "extra_forbidden":
            known = known_keys(location)
            hint = nearest(str(location[-1]), known)
            raise ConfigError(f"{where}{name} is not a known key.{hint} Known here: {', '.join(known)}") from None
        raise ConfigError(f"{where}{name} is {shown(first['input'])}: {reason(first)}") from None


def read_plan(path: Path) -> tuple[dict[str, Any], Path]:
    """Return the content of a plan's file and its folder.

    Raises:
        ConfigError: it does not parse.
    """
    return read_keys(path, ConfigError), path.resolve().parent


def is_plan_file(path: Path) -> bool:
    """Return whether a YAML file is a plan, which may leave out systems, rather than a configuration."""
    if path.suffix not in (".yml", ".yaml") or not path.is_file():
        return False
    content = read_mapping(path)
    return is_plan(content) or content.keys() <= PlanFile.model_fields.keys()
