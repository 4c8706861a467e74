"""The result of a reader: part of a full-form configuration, and notes for the user."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Read:
    """A part of a configuration.

    Attributes:
        content: sections of the full form and their keys, only those that the file decides.
        notes: sentences about what a prediction of it leaves out.
        format: the name of the format that it was read from.
        unsaid: keys of the full form that the file leaves open although a run needs them, each with why.
    """

    content: dict[str, Any]
    notes: tuple[str, ...]
    format: str
    unsaid: dict[str, str] = field(default_factory=dict)

    def still_unsaid(self, content: dict[str, Any]) -> list[str]:
        """Return a sentence for every key that the file leaves open and a configuration does not say either.

        Args:
            content: the configuration that the file became a part of, presets spelt out.
        """
        sentences = []
        for key, reason in self.unsaid.items():
            section, _, name = key.partition(".")
            if name not in content.get(section, {}):
                sentences.append(f"{reason}: set {key}")
        return sentences
