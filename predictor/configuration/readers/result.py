"""The result of a reader: part of a full-form configuration, and notes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Read:
    """A part of a configuration.

    Attributes:
        content: sections of the full form with the keys that the file determines.
        notes: sentences about keys that a prediction leaves out.
        format: name of the file's format.
        unsaid: required keys of the full form that the file leaves open, each with the reason.
    """

    content: dict[str, Any]
    notes: tuple[str, ...]
    format: str
    unsaid: dict[str, str] = field(default_factory=dict)

    def still_unsaid(self, content: dict[str, Any]) -> list[str]:
        """Return a sentence for every required key that neither the file nor the configuration has.

        Args:
            content: the whole configuration, presets expanded.
        """
        sentences = []
        for key, reason in self.unsaid.items():
            section, _, name = key.partition(".")
            if name not in content.get(section, {}):
                sentences.append(f"{reason}: set {key}")
        return sentences
