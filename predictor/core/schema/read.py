"""The result of a reader: part of a full-form configuration, and notes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Read:
    """A part of a configuration.

    Attributes:
        content: sections of the full form with the keys that the file determines.
        notes: sentences about keys that a prediction leaves out.
        format: name of the file's format, which ``read_any`` adds.
        unsaid: required keys of the full form that the file leaves open, each with the reason.
        derived: keys that follow from the whole configuration, each with the function that finds its value.
    """

    content: dict[str, Any]
    notes: tuple[str, ...]
    format: str = ""
    unsaid: dict[str, str] = field(default_factory=dict)
    derived: dict[str, Callable[[dict[str, Any]], Any]] = field(default_factory=dict)

    @property
    def describes_model_alone(self) -> bool:
        """Return whether the file says nothing on how its model is trained."""
        return self.content.keys() <= {"model"}

    def still_unsaid(self, content: dict[str, Any]) -> dict[str, str]:
        """Return a sentence by every required key that neither the file nor the configuration has.

        Args:
            content: the whole configuration, presets expanded.
        """
        sentences = {}
        for key, reason in self.unsaid.items():
            *sections, name = key.split(".")
            inner: Any = content
            for section in sections:
                inner = inner.get(section) or {}
            if name not in inner:
                sentences[key] = f"{reason}: set {key} (in a configuration, or with --set)"
        return sentences

    def with_derived(self, content: dict[str, Any]) -> dict[str, Any]:
        """Return a whole configuration with the keys that follow from it and that it does not have."""
        whole = dict(content)
        for key, find in self.derived.items():
            section, _, name = key.partition(".")
            value = find(whole)
            if name not in whole.get(section, {}) and value is not None:
                whole[section] = {**whole.get(section, {}), name: value}
        return whole
