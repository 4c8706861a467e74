"""Questions of a request: checked, so that no file is read and no search is too large, then answered as JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from predictor.core.base.bundled import systems
from predictor.core.base.errors import ConfigError, same_name
from predictor.core.base.read_yaml import first_problem
from predictor.core.costs.hardware_change import is_of_hardware
from predictor.core.plan.short_config import is_short
from predictor.core.predict.comparison import compare
from predictor.core.predict.prediction import StepPrediction, predict
from predictor.core.schema.finding import published
from predictor.core.schema.input_kind import is_of_trainer
from predictor.core.schema.presets import find_preset, preset_names, spelled
from predictor.layout_search.interface import search
from predictor.layout_search.model_options import of_model

MOST_COMPARED = 16
MOST_CHANGES = 64
MOST_SHOWN = 100
LARGEST_SEARCH_GPUS = 131_072
DEEPEST = 12


def _published(name: object) -> object:
    """Return the published spelling of a system's name; a path is refused."""
    if name is None or name in systems():
        return name
    meant = same_name(name, systems()) if isinstance(name, str) else None
    if meant is None:
        raise ValueError(f"expected a published system: {', '.join(systems())}")
    return meant


def _preset(name: object) -> object:
    """Return the spelling of a preset's name; a path is refused."""
    meant = spelled(name) if isinstance(name, str) else None
    if meant is None:
        raise ValueError("expected the name of a preset, as GET /presets lists them")
    return meant


SystemName = Annotated[str | None, BeforeValidator(_published)]
Changes = Annotated[dict[str, str | int | float | bool], Field(max_length=MOST_CHANGES)]


class Question(BaseModel):
    """Base of every request's body: closed and immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True)


Body = TypeVar("Body", bound=Question)


class PredictQuestion(Question):
    """Body of ``POST /predict``: a configuration in its full form, or a preset with ``gpus`` among its changes."""

    configuration: dict[str, Any] | None = None
    model: Annotated[str, BeforeValidator(_preset)] | None = None
    system: SystemName = None
    changes: Changes = {}


class CompareQuestion(Question):
    """Body of ``POST /compare``."""

    configurations: list[dict[str, Any]] = Field(min_length=1, max_length=MOST_COMPARED)
    systems: list[SystemName] = Field(default=[], max_length=MOST_COMPARED)
    changes: Changes = {}


class SearchAnswerQuestion(Question):
    """Body of ``POST /search``; the keys are the arguments of ``predictor.search``."""

    model: Annotated[str, BeforeValidator(_preset)] | None = None
    configuration: dict[str, Any] | None = None
    gpus: int = Field(strict=True, gt=0, le=LARGEST_SEARCH_GPUS)
    system: SystemName = None
    options: dict[str, Any] = {}
    top: int = Field(default=10, strict=True, gt=0, le=MOST_SHOWN)


def _depth(value: object, depth: int = 0) -> int:
    """Return how deep a value is nested, up to one more than what is allowed."""
    if depth > DEEPEST:
        return depth
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return max((_depth(item, depth + 1) for item in inner), default=depth)


def checked_configuration(content: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration that names no file.

    Raises:
        ConfigError: it is nested too deep, in a form that names folders, or names a file.
    """
    if _depth(content) > DEEPEST:
        raise ConfigError(f"configuration is nested deeper than {DEEPEST} levels")
    if is_short(content) or is_of_trainer(content):
        raise ConfigError("configuration names files of the server; send the full form (docs/configuration.md)")
    if "from" in content:
        raise ConfigError("from names files of the server; send their keys as sections of the configuration")
    try:
        return {**content, "system": _published(content.get("system"))}
    except ValueError:
        raise ConfigError(f"system is {content.get('system')!r}; expected a published system: {published()}") from None


def _texts(changes: Mapping[str, object]) -> list[str]:
    return [f"{key}={value}" for key, value in changes.items()]


def _prediction(question: PredictQuestion) -> StepPrediction:
    if (question.configuration is None) == (question.model is None):
        raise ConfigError("give configuration, or model with system and changes.gpus; not both")
    texts = _texts(question.changes)
    if question.model is not None:
        return predict(
            of_model(question.model, texts, question.system), hardware=[text for text in texts if is_of_hardware(text)]
        )
    assert question.configuration is not None
    return predict(checked_configuration(question.configuration), system=question.system, hardware=texts)


def answer_predict(body: dict[str, Any]) -> dict[str, Any]:
    """Return what ``predict --json`` prints."""
    return _prediction(_valid(PredictQuestion, body)).to_dict()


def answer_compare(body: dict[str, Any]) -> dict[str, Any]:
    """Return what ``compare --json`` prints."""
    question = _valid(CompareQuestion, body)
    configurations = [checked_configuration(content) for content in question.configurations]
    named = [name for name in question.systems if name is not None]
    count = len(configurations) * (1 + len(named))
    if count > MOST_COMPARED:
        raise ConfigError(f"{count} predictions are asked for; one request compares up to {MOST_COMPARED}")
    return compare(configurations, systems=named, hardware=_texts(question.changes)).to_dict()


def answer_search(body: dict[str, Any]) -> dict[str, Any]:
    """Return what ``search --json`` prints."""
    question = _valid(SearchAnswerQuestion, body)
    if (question.configuration is None) == (question.model is None):
        raise ConfigError("give configuration or model, not both")
    known = set(search.__kwdefaults__ or {}) - {"system", "top"}
    if unknown := sorted(set(question.options) - known):
        raise ConfigError(f"options.{unknown[0]} is not an option of search; known: {', '.join(sorted(known))}")
    model: Any = question.model
    if question.configuration is not None:
        model = checked_configuration(question.configuration)
    return search(model, question.gpus, system=question.system, top=question.top, **question.options).to_dict()


def answer_systems() -> dict[str, Any]:
    """Return the names of the published systems."""
    return {"systems": systems()}


def answer_presets() -> dict[str, Any]:
    """Return every preset with its parameters."""
    return {"presets": {name: find_preset(name).parameters for name in preset_names()}}


def _valid(kind: type[Body], body: dict[str, Any]) -> Body:
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        raise ConfigError(first_problem(error)) from None


POSTS: Mapping[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "/predict": answer_predict,
    "/compare": answer_compare,
    "/search": answer_search,
}
GETS: Mapping[str, Callable[[], dict[str, Any]]] = {"/systems": answer_systems, "/presets": answer_presets}
