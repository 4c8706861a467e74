"""Tell HugeCTR's configurations from others by their content; loads no reader."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def is_hugectr(content: Mapping[str, Any]) -> bool:
    """Return whether a file is a HugeCTR configuration, told by its layers."""
    layers = content.get("layers")
    return isinstance(layers, list) and any(
        isinstance(layer, Mapping) and layer.get("type") == "Data" for layer in layers
    )
