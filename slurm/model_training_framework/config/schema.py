"""Names of all sections and keys, by dotted name; sections register themselves."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from difflib import get_close_matches
from typing import Any

FREE = ("custom_params", "data.preprocessing", "slurm.environment", "prediction.config")
# What other tools, and the framework that this interface comes from, call the same thing.
SYNONYMS = {
    "bs": "training.batch_size",
    "dataset": "data.dataset_name",
    "grad_accum": "training.gradient_accumulation_steps",
    "grad_clip": "training.max_grad_norm",
    "lr": "training.learning_rate",
    "max_epochs": "training.epochs",
    "n_embd": "model.hidden_size",
    "n_heads": "model.num_heads",
    "n_layers": "model.num_layers",
    "name": "experiment_name",
    "num_attention_heads": "model.num_heads",
    "num_epochs": "training.epochs",
    "num_nodes": "slurm.nodes",
    "time": "slurm.time_limit",
    "walltime": "slurm.time_limit",
}
_SECTIONS: dict[str, tuple[str, ...]] = {}


def register(at: str, section: Any) -> tuple[str, ...]:
    """Remember the keys of a section and return them, in the order of their definition."""
    _SECTIONS[at] = tuple(field.name for field in fields(section))
    return _SECTIONS[at]


def keys_of(at: str) -> tuple[str, ...]:
    """Return the keys of a section; none where there is no such section."""
    return _SECTIONS.get(at, ())


def is_section(dotted: str) -> bool:
    """Return whether a dotted key is a section with keys of its own."""
    return dotted in _SECTIONS


def is_known(at: str, key: str) -> bool:
    """Return whether a section has a key."""
    return key in _SECTIONS.get(at, ())


def is_free(dotted: str) -> bool:
    """Return whether keys below, or at, a dotted key are the user's own."""
    return any(dotted == free or dotted.startswith(f"{free}.") for free in FREE)


def joined(at: str, key: str) -> str:
    """Return the dotted name of a key of a section."""
    return f"{at}.{key}" if at else key


def dotted_keys() -> tuple[str, ...]:
    """Return every key of a whole configuration that is no section, by dotted name."""
    return tuple(
        joined(at, key) for at, keys in sorted(_SECTIONS.items()) for key in keys if not is_section(joined(at, key))
    )


def printable(text: str) -> str:
    """Return a text as one line: line ends and control characters are escaped."""
    return text if text.isprintable() else "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def _closest(key: str, known: Iterable[str]) -> str | None:
    close = get_close_matches(key, list(known), n=1)
    return close[0] if close else None


def nearest_key(at: str, key: str) -> str:
    """Return « Did you mean …? » for a key that a section does not have, or an empty string.

    Keys of the same section come first, then a key of that name in another section, then known synonyms.
    """
    here = _closest(key, keys_of(at))
    elsewhere = [joined(other, key) for other, keys in _SECTIONS.items() if key in keys and other != at]
    if at and key == "type" and "name" in keys_of(at):
        here = "name"
    synonym = SYNONYMS.get(key)
    meant = (joined(at, here) if here else None) or (elsewhere[0] if elsewhere else None) or synonym
    if meant is None:
        meant = _closest(joined(at, key), dotted_keys())
    return f" Did you mean {meant}?" if meant else ""


def unknown_key(at: str, key: str) -> str:
    """Return the line that says that a section has no such key."""
    return (
        f"{printable(joined(at, key))} is not a known key.{nearest_key(at, key)} Known here: {', '.join(keys_of(at))}. "
        "Keys of your own go into custom_params"
    )
