"""The YAML files of one GPT-NeoX run as one set of keys, which its launcher merges, and how such files are told.

Source: EleutherAI/gpt-neox, megatron/neox_arguments/arguments.py (from_ymls).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from predictor.core.base.errors import ConfigError
from predictor.formats.fields import Fields
from predictor.formats.known_keys import known_keys
from predictor.formats.source import DATA, Source

KEYS = "gpt_neox"
# Keys that DeepSpeed itself takes; GPT-NeoX hands them on.
OF_DEEPSPEED = (
    "activation_checkpointing",
    "amp",
    "autotuning",
    "bf16",
    "checkpoint",
    "comms_logger",
    "communication_data_type",
    "compression_training",
    "csv_monitor",
    "curriculum_learning",
    "data_efficiency",
    "data_types",
    "dump_state",
    "elasticity",
    "flops_profiler",
    "fp16",
    "fp32_allreduce",
    "gradient_accumulation_steps",
    "gradient_clipping",
    "gradient_predivide_factor",
    "optimizer",
    "prescale_gradients",
    "scheduler",
    "sparse_attention",
    "sparse_gradients",
    "steps_per_print",
    "tensorboard",
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "wall_clock_breakdown",
    "zero_allow_untested_optimizer",
    "zero_optimization",
)
EXTRA = "deepspeed_extra_args"  # holds further ones
# Of a model or of a training: keys beside num_layers that no other tool has.
OF_LAYOUT = frozenset({"pipe_parallel_size", "model_parallel_size", "zero_optimization", "pos_emb"})
# Of a file that holds a part alone: one of these, where all others are GPT-NeoX's too.
MARKS = frozenset(
    {
        "attention_config",
        "checkpoint_activations",
        "data_impl",
        "data_path",
        "deepspeed_slurm",
        "gpt_j_residual",
        "hostfile",
        "keep_last_n_checkpoints",
        "log_dir",
        "merge_file",
        "model_parallel_size",
        "no_weight_tying",
        "output_layer_parallelism",
        "pipe_parallel_size",
        "synchronize_each_layer",
        "tensorboard_dir",
        "train_data_paths",
        "vocab_file",
        "wandb_team",
    }
)


def spelled(key: str) -> str:
    """Return a key as GPT-NeoX's code has it; its files may have dashes."""
    return key.replace("-", "_")


def is_of_gpt_neox(source: Source) -> bool:
    """Return whether a file holds a run of GPT-NeoX, or a part of one such as its paths alone."""
    if source.syntax not in DATA:
        return False
    keys = {spelled(key) for key in source.content}
    if "num_layers" in keys and keys & OF_LAYOUT:
        return True
    if len(keys) < 2 or not keys & MARKS:
        return False
    known = known_keys(KEYS)
    named = {*known.read, *known.refused, *known.noted, *OF_DEEPSPEED, EXTRA}
    return all(key in named or known.is_irrelevant(key) for key in keys)


@dataclass(slots=True)
class Keys(Fields):
    """Keys of the files of one run, by their names in GPT-NeoX's code.

    Attributes:
        homes: file and spelling of every key.
    """

    homes: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    def written(self, key: str) -> str:
        """Return a key as its own file has it."""
        return self.homes.get(key, (self.where, key))[1]

    def error(self, key: str, rule: str) -> ConfigError:
        """Return the error that a value breaks a rule, with the key's own file and spelling."""
        where, written = self.homes.get(key, (self.where, key))
        return ConfigError(f"{where}: {written} is {self._shown(key)}; {rule}")


def joined(files: Sequence[tuple[str, dict[str, Any]]], problems: list[str], notes: list[str]) -> Keys:
    """Return the keys of files in their order; of a key in two files the later counts, with a note.

    Args:
        files: name and content of each.
        problems: record of what is wrong.
        notes: notes so far.
    """
    values: dict[str, Any] = {}
    homes: dict[str, tuple[str, str]] = {}
    for name, content in files:
        for key, value in content.items():
            known = spelled(key)
            if known in values and homes[known][0] != name and values[known] != value:
                notes.append(f"{homes[known][0]} and {name} both have {key}, which GPT-NeoX refuses; {name} counts")
            values[known], homes[known] = value, (name, key)
    extra = values.pop(EXTRA, None)
    if isinstance(extra, dict):
        values |= {key: value for key, value in extra.items() if key not in values}
    where = " + ".join(name for name, _ in files)
    return Keys(values, where, problems=problems, homes=homes)


def of_deepspeed(keys: Keys) -> dict[str, Any]:
    """Return the configuration that DeepSpeed gets, without keys of its fp16 section that DeepSpeed does not know."""
    content = {key: keys.get(key) for key in OF_DEEPSPEED if keys.has(key)}
    if isinstance(half := content.get("fp16"), dict):
        content["fp16"] = {key: value for key, value in half.items() if key not in ("fp16", "bf16", "type")}
    return content
