"""Arguments of Megatron-LM by name, with which of them are refused, noted or without effect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from predictor.core.base.errors import ConfigError, nearest
from predictor.formats.fields import Fields
from predictor.formats.known_keys import known_keys
from predictor.formats.shell.words import as_written, is_unknown, shown

KEYS = "megatron"
# Arguments of the releases of 2020, when a step had one micro-batch.
OLDER = {"batch-size": "micro-batch-size", "model-parallel-size": "tensor-model-parallel-size"}
AS_IT_RUNS = "print the command that runs (echo in front of it) and read that"
OFF = (None, False, "0", "None", "none", "null", "")


@dataclass(slots=True)
class Options(Fields):
    """Arguments by name, dashes between words; True where no value follows.

    Attributes:
        names: how the file calls an argument, where it is not a command line.
    """

    names: dict[str, str] = field(default_factory=dict)

    def get(self, key: str) -> Any:
        """Return a value, None after recording that only a run of the script knows it."""
        value = Fields.get(self, key)
        if isinstance(value, str) and is_unknown(value):
            rule = f"which only a run of the script knows; write its value, or {AS_IT_RUNS}"
            if self.prefix != "--":
                rule = "which comes from outside the file; write its value"
            self.broken(ConfigError(f"{self.where}: {self.named(key)} is {self._shown(key)}, {rule}"))
            return None
        return value

    def rename(self, names: Mapping[str, str]) -> None:
        """Give arguments the names that the reader knows; where both are given, the known one counts."""
        for key in names.keys() & self.values.keys():
            self.values = {names[key]: self.values[key], **{k: v for k, v in self.values.items() if k != key}}
            self.names[names[key]] = f"{self.prefix}{key}"

    def named(self, key: str) -> str:
        """Return an argument as the file calls it."""
        return self.names.get(key, f"{self.prefix}{key}")

    def error(self, key: str, rule: str) -> ConfigError:
        """Return the error that a value breaks a rule; the rule carries the way out."""
        return ConfigError(f"{self.where}: {self.named(key)} is {self._shown(key)}; {rule}")

    def _shown(self, key: str) -> str:
        value = self.values.get(key)
        if value is True:
            return "given"
        return as_written(str(value)) if self.prefix == "--" else shown(str(value))

    def refuse(self) -> None:
        """Record arguments that change the cost in a way that is not modelled, with reason and remedy."""
        for name, reason in known_keys(KEYS).refused.items():
            key = name.replace("_", "-")
            if key not in self.used and self.values.get(key) not in OFF:
                self.broken(self.error(key, reason))

    def rest(self) -> list[str]:
        """Return notes on the arguments that the reader did not use, and record those that are unknown.

        Where something is wrong already, an argument that the reader may not have reached counts as known.
        """
        known = known_keys(KEYS)
        unreached = known.read if self.problems else frozenset()
        notes = []
        for key in self.unused():
            name = key.replace("-", "_")
            if name in known.noted:
                notes += [] if self.values[key] in OFF else [known.noted[name]]
            elif name not in known.refused and name not in unreached and not known.is_irrelevant(name):
                usual = [used.replace("-", "_") for used in self.used] + list(known.irrelevant)
                self.broken(
                    ConfigError(
                        f"{self.where}: {self.named(key)} is not an argument of Megatron-LM that is known here."
                        f"{nearest(name, usual).replace('_', '-')} Remove it from the file if it changes no cost of a "
                        "step"
                    )
                )
        return notes
