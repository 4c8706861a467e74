"""Nested mappings and dotted keys; results share no part with their inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from model_training_framework.config.errors import ConfigurationError
from model_training_framework.config.explain import shown
from model_training_framework.config.fields import file_values
from model_training_framework.config.schema import is_free, is_known, is_section, unknown_key


def merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return two nested mappings as one; where both have a value, ``over`` wins. Lists replace lists."""
    both: dict[str, Any] = file_values(under)
    for key, value in over.items():
        below = both.get(key)
        is_both = isinstance(below, dict) and isinstance(value, Mapping)
        both[key] = merged(below, value) if is_both else file_values(value)  # type: ignore[arg-type]
    return both


def check_key(dotted: object) -> str:
    """Return a dotted key of a configuration, checked against its sections.

    Raises:
        ConfigurationError: it is no text, has an empty part, or there is no such key; the message names the nearest.
    """
    if not isinstance(dotted, str) or not all(part.strip() for part in dotted.split(".")):
        raise ConfigurationError(f"{shown(dotted)} is not a key; expected dotted names such as model.hidden_size")
    at = ""
    for part in dotted.split("."):
        if is_free(at):
            break
        if at and not is_section(at):
            raise ConfigurationError(f"{dotted} is not a known key: {at} has a value, not keys of its own")
        if not is_known(at, part):
            raise ConfigurationError(unknown_key(at, part))
        at = f"{at}.{part}" if at else part
    return dotted


def with_value(content: Mapping[str, Any], dotted: str, value: Any) -> dict[str, Any]:
    """Return a mapping in which a dotted key has a value; parts beside the key's path are shared with ``content``.

    Raises:
        ConfigurationError: a part of the path has a value that is no mapping.
    """
    whole = here = dict(content)
    *path, last = dotted.split(".")
    for depth, part in enumerate(path):
        below = here.get(part)
        if below is not None and not isinstance(below, Mapping):
            where = ".".join(path[: depth + 1])
            raise ConfigurationError(f"{dotted} cannot be set: {where} is {shown(below)}, which has no keys")
        here[part] = dict(below or {})
        here = here[part]
    here[last] = value
    return whole


def with_values(content: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a mapping in which dotted keys have new values.

    Raises:
        ConfigurationError: a key is not a known one, or its place is taken by a value.
    """
    whole: dict[str, Any] = file_values(content)
    for dotted, value in values.items():
        whole = with_value(whole, check_key(dotted), file_values(value))
    return whole
