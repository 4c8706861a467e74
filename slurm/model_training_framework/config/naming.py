"""Names of a grid's experiments: safe for files, of bounded length, the same in every run."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from hashlib import sha256
from typing import Any

from model_training_framework.config.fields import LONGEST_NAME, NOT_IN_A_NAME

HASH_DIGITS = 12  # 48 bits: of 10,000 experiments two share a hash with a probability of 2e-7


class NamingStrategy(StrEnum):
    """How experiments of a grid are named, after the base configuration's own name.

    HASH_BASED: a hash of the parameters; a grid that grows keeps the names of the experiments that it had.
    DESCRIPTIVE: parameters by the shortest end of their keys that no other has, and values. SEQUENTIAL: the position in
    the order, which a grid that grows may change.
    """

    HASH_BASED = "hash_based"
    DESCRIPTIVE = "descriptive"
    SEQUENTIAL = "sequential"


def _whole_as_int(value: Any) -> Any:
    """Return a value in which whole numbers are no floats."""
    if isinstance(value, list):
        return [_whole_as_int(inner) for inner in value]
    if isinstance(value, dict):
        return {key: _whole_as_int(inner) for key, inner in value.items()}
    return int(value) if isinstance(value, float) and value.is_integer() else value


def canonical(value: Any) -> str:
    """Return one text for equal values: 1.0 is 1, true is not, and the order of a mapping's keys does not count."""
    return json.dumps(_whole_as_int(value), sort_keys=True)


def digest(texts: Iterable[str], digits: int = HASH_DIGITS) -> str:
    """Return hexadecimal digits of a hash that does not depend on the process."""
    return sha256("\n".join(texts).encode()).hexdigest()[:digits]


def parameter_hash(parameters: Mapping[str, Any]) -> str:
    """Return the hash of dotted keys and values, whatever their order."""
    return digest(f"{key}={canonical(parameters[key])}" for key in sorted(parameters))


def short_keys(keys: Iterable[str]) -> dict[str, str]:
    """Return the shortest end of every dotted key that no other key has.

    >>> short_keys(["model.name", "optimizer.name", "training.batch_size"])
    {'model.name': 'model.name', 'optimizer.name': 'optimizer.name', 'training.batch_size': 'batch_size'}
    """
    ends = {key: [key.split(".", cut)[-1] for cut in range(key.count("."), -1, -1)] for key in dict.fromkeys(keys)}
    counts = Counter(end for of_key in ends.values() for end in of_key)
    return {key: next((end for end in of_key if counts[end] == 1), key) for key, of_key in ends.items()}


def described(value: Any) -> str:
    """Return a value as a name may hold it; where something is lost on the way, a hash tells it from others."""
    if isinstance(value, list):
        return "-".join(described(inner) for inner in value) or "empty"
    if isinstance(value, dict):
        name = value.get("name")
        return f"{described(name)}-{digest([canonical(value)], 6)}" if name else digest([canonical(value)], 6)
    text = value if isinstance(value, str) else "none" if value is None else json.dumps(value)
    safe = NOT_IN_A_NAME.sub("_", text)
    return safe if safe == text and text else f"{safe or 'empty'}-{digest([text], 6)}"


def _bounded(name: str, parameters: Mapping[str, Any]) -> str:
    """Return a name that is short enough; a hash keeps apart what the cut would make equal."""
    if len(name) <= LONGEST_NAME:
        return name
    return f"{name[: LONGEST_NAME - HASH_DIGITS - 1]}_{parameter_hash(parameters)}"


def names(strategy: NamingStrategy, prefixes: Sequence[str], combinations: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the name of every combination of parameters.

    Two names that differ in upper and lower case alone, which some file systems take for one, get a hash each.

    Args:
        strategy: how to name.
        prefixes: what each name starts with.
        combinations: dotted keys and values.
    """
    room = LONGEST_NAME - HASH_DIGITS - 1
    if strategy is NamingStrategy.SEQUENTIAL:
        return [f"{prefix[:room]}_{number:04d}" for number, prefix in enumerate(prefixes)]
    if strategy is NamingStrategy.HASH_BASED:
        return [
            f"{prefix[:room]}_{parameter_hash(combination)}"
            for prefix, combination in zip(prefixes, combinations, strict=True)
        ]
    short = short_keys(key for combination in combinations for key in combination)
    texts: dict[str, str] = {}
    found = []
    for prefix, combination in zip(prefixes, combinations, strict=True):
        parts = [prefix]
        for key, value in combination.items():
            known = f"{key}={value!r}"
            if known not in texts:
                texts[known] = f"{short[key]}={described(value)}"
            parts.append(texts[known])
        found.append(_bounded("_".join(parts), combination))
    counts = Counter(name.casefold() for name in found)
    return [
        name if counts[name.casefold()] == 1 else f"{name[:room]}_{parameter_hash(combination)}"
        for name, combination in zip(found, combinations, strict=True)
    ]
