"""The JSON that commands print and the server sends, and objects of JSON that is read."""

from __future__ import annotations

import json
from typing import Any

from predictor.core.base.errors import ConfigError


def as_json(content: object, indent: int | None = 2) -> str:
    """Return JSON in ASCII.

    Raises:
        ValueError: a number is NaN or infinite, which JSON does not have.
    """
    return json.dumps(content, indent=indent, allow_nan=False)


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON, as ``object_pairs_hook`` of its decoder.

    Raises:
        ConfigError: a key is given twice.
    """
    content = dict(pairs)
    if len(content) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ConfigError(f"{next(key for key in keys if keys.count(key) > 1)} is given twice")
    return content
