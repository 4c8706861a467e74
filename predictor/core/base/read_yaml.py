"""Read hand-written YAML strictly: one mapping, no duplicate keys, numbers in any common notation."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import yaml

from predictor.core.base.errors import ConfigError
from predictor.core.base.yaml_depth import load_yaml

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError

LARGEST_FILE = 10_000_000  # bytes; a configuration has some hundreds
START = "estimate-train-time show-example prints a configuration to start from"
Model = TypeVar("Model", bound="BaseModel")
# YAML 1.1 reads 1:30 as 90 and 010 as 8, which nobody means: both are text here, and no number's key takes text.
INTEGERS = re.compile(r"^(?:[-+]?0b[0-1_]+|[-+]?0x[0-9a-fA-F_]+|[-+]?(?:0|[1-9][0-9_]*))$")
FLOATS = re.compile(
    r"^(?:[-+]?(?:[0-9][0-9_]*)\.[0-9_]*(?:[eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+|[-+]?\.[0-9_]+(?:[eE][-+]?[0-9]+)?"
    r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
)
NUMBERS = {"tag:yaml.org,2002:int": INTEGERS, "tag:yaml.org,2002:float": FLOATS}


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """YAML 1.1, but numbers are written as everywhere else (1e-4), and a key that is given twice is an error."""

    yaml_implicit_resolvers: ClassVar[dict[str, list[tuple[str, Any]]]] = {
        first: [(tag, NUMBERS.get(tag, pattern)) for tag, pattern in resolvers]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Return a mapping; equal keys are an error as in YAML, where PyYAML would use the last."""
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value} is given twice", key.start_mark)
            seen.add(key.value if isinstance(key, yaml.ScalarNode) else "")
        return dict(super().construct_mapping(node, deep=deep))


class _ForeignLoader(_Loader):
    """As other tools read their own files: the last of equal keys counts, and a tag of an object is its keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Return a mapping."""
        return dict(super(_Loader, self).construct_mapping(node, deep=deep))

    def construct_tagged(self, _: str, node: yaml.Node) -> Any:
        """Return what stands behind a tag."""
        if isinstance(node, yaml.MappingNode):
            return self.construct_mapping(node, deep=True)
        return self.construct_sequence(node, deep=True) if isinstance(node, yaml.SequenceNode) else node.value


_ForeignLoader.add_multi_constructor("", _ForeignLoader.construct_tagged)


def load_foreign(text: str) -> Any:
    """Return the content of another tool's YAML.

    Raises:
        yaml.YAMLError: it does not parse.
        ValueError: a date that does not exist, or a number of thousands of digits.
    """
    return load_yaml(text, _ForeignLoader)


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
    try:
        content = load_yaml(_bytes(path), _Loader, str(path))
    except ConfigError:
        raise
    except (ValueError, RecursionError) as error:  # a date that does not exist, a number of 5,000 digits
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if content is None:
        raise ConfigError(f"{path} is empty; {if_empty}")
    if not isinstance(content, dict):
        raise ConfigError(f"{path} holds {_kind(content)}; expected keys and values")
    return {str(key): value for key, value in content.items()}


def _bytes(path: Path) -> bytes:
    """Return the content of a file, or of a pipe, that is no larger than a configuration can be."""
    try:
        with path.open("rb") as stream:
            content = stream.read(LARGEST_FILE + 1)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None  # a failed read names no file
    if len(content) > LARGEST_FILE:
        raise ConfigError(f"{path} has more than {LARGEST_FILE // 10**6} MB; expected a configuration file")
    return content


def parse_value(text: str) -> Any:
    """Return a value as a hand-written file would have it: a number, a switch, null, text or a list.

    Raises:
        yaml.YAMLError: it does not parse, or is nested too deep.
        ValueError: a date that does not exist, or a number of thousands of digits.
    """
    return load_yaml(text, _Loader)


def one_line(error: yaml.YAMLError) -> str:
    """Return a parse error and its place in one line."""
    if isinstance(error, yaml.reader.ReaderError):
        return f"{error.name}, character {error.position}: not YAML in UTF-8; save the file so"
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None)
    if mark is None or problem is None:
        return f"not YAML: {' '.join(str(error).split())}"
    return f"{mark.name}, line {mark.line + 1}, column {mark.column + 1}: not YAML: {problem}"


def first_error(error: ValidationError) -> Any:
    """Return the error that explains the others: an unknown key before what is missing for it, else the first."""
    errors = error.errors(include_url=False, include_context=False)
    return next((one for one in errors if one["type"] == "extra_forbidden"), errors[0])


def shown(value: object) -> str:
    """Return a value as its file has it; of mappings and lists only the kind."""
    if value is None:
        return "null"
    if isinstance(value, dict):
        return "a mapping"
    return "a list" if isinstance(value, list) else f"{value!r}"


def reason(first: Any) -> str:
    """Return what pydantic's error says of a value, as the end of a sentence."""
    message: str = first["msg"].removeprefix("Value error, ")
    return f"{message[0].lower()}{message[1:]}"


def first_problem(error: ValidationError) -> str:
    """Return the first invalid field with its value and the reason."""
    first = first_error(error)
    where = ".".join(str(part) for part in first["loc"])
    if first["type"] == "missing":
        return f"{where} is missing; it is required"
    if first["type"] == "extra_forbidden":
        return f"{where} is not a known key"
    if not where or isinstance(first["input"], dict):  # a rule on several keys, which names them itself
        return ": ".join(filter(None, (where, reason(first))))
    return f"{where} is {shown(first['input'])}: {reason(first)}"


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
