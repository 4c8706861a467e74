"""Read hand-written YAML strictly: one mapping, no duplicate keys, numbers in any common notation."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import yaml

from predictor.base.errors import ConfigError

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError

START = "estimate-train-time show-example prints a configuration to start from"
Model = TypeVar("Model", bound="BaseModel")


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """YAML 1.1, but 1e-4 is a number as everywhere else, and a key that is given twice is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Return a mapping; equal keys are an error as in YAML, where PyYAML would use the last."""
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value} is given twice", key.start_mark)
            seen.add(key.value if isinstance(key, yaml.ScalarNode) else "")
        return dict(super().construct_mapping(node, deep=deep))


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def _kind(content: object) -> str:
    """Return the kind of a file's content that is no mapping."""
    if isinstance(content, bool):
        return "true or false"
    if isinstance(content, int | float):
        return "a number"
    if isinstance(content, str):
        return "text"
    return "a list" if isinstance(content, list) else "a single value"


def read_mapping(path: Path, if_empty: str = START) -> dict[str, Any]:
    """Read a YAML file, or a pipe, that holds one mapping.

    Args:
        path: of the file.
        if_empty: remedy in the message about an empty file.

    Raises:
        FileNotFoundError: there is no such file.
        yaml.YAMLError: it does not parse.
        ConfigError: it is empty or holds something else.
    """
    if path.is_dir():
        raise ConfigError(f"{path} is a folder; expected a configuration file")
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist")
    with path.open("rb") as stream:
        try:
            content = yaml.load(stream, Loader=_Loader)
        except (ValueError, RecursionError) as error:  # a date that does not exist, a number of 5,000 digits
            raise ConfigError(f"{path} cannot be read: {error}") from error
    if content is None:
        raise ConfigError(f"{path} is empty; {if_empty}")
    if not isinstance(content, dict):
        raise ConfigError(f"{path} holds {_kind(content)}; expected keys and values")
    return {str(key): value for key, value in content.items()}


def parse_value(text: str) -> Any:
    """Return a value as a hand-written file would have it: a number, a switch, null, text or a list.

    Raises:
        yaml.YAMLError: it does not parse.
        ValueError: a date that does not exist, or a number of thousands of digits.
    """
    return yaml.load(text, Loader=_Loader)


def one_line(error: yaml.YAMLError) -> str:
    """Return a parse error and its place in one line."""
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None)
    if mark is None or problem is None:
        return f"not YAML: {' '.join(str(error).split())}"
    return f"{mark.name}, line {mark.line + 1}, column {mark.column + 1}: not YAML: {problem}"


def first_problem(error: ValidationError) -> str:
    """Return the first invalid field with the reason."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    reason = first["msg"].removeprefix("Value error, ")
    return f"{where}: {reason}" if where else reason


def read_keys(path: Path, error_type: type[ValueError]) -> dict[str, Any]:
    """Read a YAML file of one mapping; any error is a one-line ``error_type``."""
    try:
        return read_mapping(path, if_empty="expected keys and values")
    except yaml.YAMLError as error:
        raise error_type(one_line(error)) from None
    except ConfigError as error:
        raise error_type(str(error)) from None
    except OSError as error:
        raise error_type(f"{path}: {error.strerror}" if error.strerror else str(error)) from None


def read_valid(path: Path, model: type[Model], error_type: type[ValueError]) -> Model:
    """Read a YAML file into a model; any error is a one-line ``error_type``."""
    from pydantic import ValidationError  # only when needed, for a fast start

    content = read_keys(path, error_type)
    try:
        return model.model_validate(content)
    except ValidationError as error:
        raise error_type(f"{path}: {first_problem(error)}") from None
