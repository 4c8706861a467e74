"""Arguments of Megatron-LM by name, with which of them are refused, noted or without effect."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from predictor.core.base.errors import ConfigError
from predictor.formats.fields import Fields
from predictor.formats.known_keys import known_keys, rest
from predictor.formats.shell.words import as_written, is_unknown, shown

KEYS = "megatron"
# Arguments of the releases of 2020, when a step had one micro-batch.
OLDER = {"batch-size": "micro-batch-size", "model-parallel-size": "tensor-model-parallel-size"}
AS_IT_RUNS = "print the command that runs (echo in front of it) and read that"
OFF = (None, False, "0", "None", "none", "null", "")
# Arguments whose value a user can say instead, by the key of a configuration that each is.
ASKED = {
    "tensor-model-parallel-size": "parallelism.tensor_parallel_size",
    "pipeline-model-parallel-size": "parallelism.pipeline_parallel_size",
    "context-parallel-size": "parallelism.context_parallel_size",
    "expert-model-parallel-size": "parallelism.expert_parallel_size",
    "micro-batch-size": "training.micro_batch_size",
    "global-batch-size": "training.global_batch_size",
    "seq-length": "model.sequence_length",
    "max-position-embeddings": "model.num_position_embeddings",
    "vocab-size": "model.vocab_size",
    "padded-vocab-size": "model.vocab_size",
    "num-layers": "model.num_layers",
    "hidden-size": "model.hidden_size",
    "num-attention-heads": "model.num_attention_heads",
    "ffn-hidden-size": "model.ffn_hidden_size",
}
# Arguments from which others follow that only their number settles.
OF_LAYERS = (
    "moe-layer-freq",
    "hybrid-layer-pattern",
    "hybrid-override-pattern",
    "window-attn-skip-freq",
    "no-rope-freq",
)
OF_STAGES = (
    "num-layers-per-virtual-pipeline-stage",
    "decoder-first-pipeline-num-layers",
    "decoder-last-pipeline-num-layers",
    "pipeline-model-parallel-layout",
)
SETTLING = {"num-layers": (*OF_LAYERS, *OF_STAGES), "pipeline-model-parallel-size": OF_STAGES}
PLACES = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth")


@dataclass(slots=True)
class Options(Fields):
    """Arguments by name, dashes between words; True where no value follows.

    Attributes:
        names: how the file calls an argument, where it is not a command line.
        variables: of the script, by values that only a run of it knows.
        asked: arguments whose value the user has to say, each with what the script says instead.
    """

    names: dict[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    asked: dict[str, str] = field(default_factory=dict)

    def get(self, key: str) -> Any:
        """Return a value, None after recording that only a run of the script knows it."""
        value = Fields.get(self, key)
        if isinstance(value, str) and is_unknown(value):
            if self._can_be_said(key):
                self.asked[key] = self._origin(value)
                return None
            rule = f"which only a run of the script knows; write its value, or {AS_IT_RUNS}"
            if self.prefix != "--":
                rule = "which comes from outside the file; write its value"
            self.broken(ConfigError(f"{self.where}: {self.named(key)} is {self._shown(key)}, {rule}"))
            return None
        return value

    def _can_be_said(self, key: str) -> bool:
        """Return whether the user can say an argument's value instead, and nothing else here depends on it."""
        return self.prefix == "--" and key in ASKED and not any(map(self.has, SETTLING.get(key, ())))

    def _origin(self, value: str) -> str:
        """Return where a script takes a value from: « TP_SIZE, which is $4, the script's fourth argument »."""
        written, name = as_written(value), self.variables.get(value)
        place = re.fullmatch(r"\$\{?([1-9])\}?", written)
        if place is not None:
            written = f"{written}, the script's {PLACES[int(place[1]) - 1]} argument"
            return f"{name}, which is {written}" if name else written
        if re.fullmatch(r"\$\{?\w+\}?", written):
            return f"{written}, which the script does not set"
        return f"{name or written}, which only a run of the script knows"

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
        """Return notes on the arguments that the reader did not use, and record those that are refused.

        Where something is wrong already, an argument that the reader may not have reached counts as known.
        """
        known = known_keys(KEYS)
        return rest(known, "Megatron-LM", [_Written(self)], known.read if self.problems else ())


class _Written(Fields):
    """Arguments by their names in argparse, for the classes of keys; in messages as the file has them."""

    def __init__(self, options: Options) -> None:
        """Take what the reader did not use."""
        values = {key.replace("-", "_"): value for key, value in options.values.items() if key not in options.used}
        super().__init__(values, options.where, problems=options.problems)
        self._options = options

    def written(self, key: str) -> str:
        """Return an argument as the file calls it."""
        return self._options.named(key.replace("_", "-"))

    def error(self, key: str, rule: str) -> ConfigError:
        """Return the error that a value breaks a rule."""
        return self._options.error(key.replace("_", "-"), rule.replace("_", "-"))
