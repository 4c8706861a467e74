"""The JSON that commands print and the server sends."""

from __future__ import annotations

import json


def as_json(content: object, indent: int | None = 2) -> str:
    """Return JSON in ASCII.

    Raises:
        ValueError: a number is NaN or infinite, which JSON does not have.
    """
    return json.dumps(content, indent=indent, allow_nan=False)
