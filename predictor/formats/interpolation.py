"""Fill in ${references} of YAML configurations as OmegaConf does; what comes from elsewhere is marked as unknown."""

from __future__ import annotations

import re
from typing import Any

from predictor.formats.shell.words import is_unknown, unknown

_REFERENCE = re.compile(r"\$\{([^${}]*)\}")
DEEPEST = 20  # references to references; more go in a circle
ARITHMETIC = {"multiply": "*", "sum": "+", "divide_floor": "//", "divide_ceil": "-//"}


def filled(content: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration whose references to its own keys are filled in.

    A reference to anything else, such as ${oc.env:HOME} or ${data_dir}, is marked (``shell_words.is_unknown``).
    """
    result = _filled(content, content, (), 0)
    return result if isinstance(result, dict) else content


def _filled(value: Any, root: dict[str, Any], path: tuple[str, ...], depth: int) -> Any:
    if isinstance(value, dict):
        return {key: _filled(item, root, (*path, str(key)), depth) for key, item in value.items()}
    if isinstance(value, list):
        return [_filled(item, root, path, depth) for item in value]
    while isinstance(value, str) and "${" in value:
        whole = _REFERENCE.fullmatch(value)
        if whole is not None:
            return _referred(whole[1], root, path, depth)
        shorter = _REFERENCE.sub(lambda found: str(_referred(found[1], root, path, depth)), value)
        if shorter == value:
            return unknown(value)
        value = shorter
    return value


def _referred(name: str, root: dict[str, Any], path: tuple[str, ...], depth: int) -> Any:
    """Return what a reference stands for: arithmetic, or a key of the configuration."""
    function, colon, rest = name.partition(":")
    if colon:
        return _calculated(function, [part.strip() for part in rest.split(",")]) if rest else unknown(name)
    dots = len(name) - len(name.lstrip("."))
    steps = [*path[: len(path) - dots], *name.lstrip(".").split(".")] if dots else name.split(".")
    value: Any = root
    for step in steps:
        if not isinstance(value, dict) or step not in value:
            return unknown(name)
        value = value[step]
    if isinstance(value, dict | list) or depth > DEEPEST:
        return unknown(name)
    return _filled(value, root, tuple(steps), depth + 1)


def _calculated(function: str, parts: list[str]) -> Any:
    if function not in ARITHMETIC or any(is_unknown(part) or not re.fullmatch(r"-?\d+", part) for part in parts):
        return unknown(f"{function}:{','.join(parts)}")
    numbers = [int(part) for part in parts]
    if len(numbers) != 2 or (function.startswith("divide") and not numbers[1]):
        return unknown(f"{function}:{','.join(parts)}")
    left, right = numbers
    results = {"multiply": left * right, "sum": left + right}
    return results.get(function, left // (right or 1) if function == "divide_floor" else -(-left // (right or 1)))
