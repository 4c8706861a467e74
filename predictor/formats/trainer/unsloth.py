"""Read a YAML of Unsloth: of its command line (``unsloth train``) and of the defaults of its Studio.

Source of names and defaults: unslothai/unsloth, unsloth_cli/config.py and studio/backend/core/training/trainer.py;
what its kernels replace: unsloth/kernels and unsloth/models/llama.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from predictor.core.base.read_yaml import read_mapping
from predictor.core.schema.problems import Problems
from predictor.core.schema.read import Read
from predictor.formats.fields import Fields
from predictor.formats.trainer.arguments import Arguments, Dialect, sectioned
from predictor.formats.trainer.layout import Launch
from predictor.formats.trainer.run import IN_STREAM, read_run

FORMAT = "Unsloth YAML"
DIALECT = Dialect(
    "Unsloth",
    "unsloth",
    {
        "model": "model_name_or_path",
        "training.max_seq_length": "max_length",
        "training.batch_size": "per_device_train_batch_size",
        "training.gradient_accumulation_steps": "gradient_accumulation_steps",
        "training.gradient_checkpointing": "gradient_checkpointing",
        "training.load_in_4bit": "load_in_4bit",
        "training.packing": "packing",
        "training.optim": "optim",
        "training.max_steps": "max_steps",
        "lora.lora_r": "lora_r",
        "lora.lora_dropout": "lora_dropout",
        "lora.target_modules": "lora_target_modules",
        "lora.use_dora": "use_dora",
    },
    {
        "max_length": 2048,
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 4,
        "gradient_checkpointing": True,
        "optim": "adamw_8bit",
        "lora_r": 64,
        "lora_target_modules": "all-linear",
        "bf16": True,
    },
    ("training.training_type",),
)
SECTIONS = ("training", "lora")
ITS_OWN = "unsloth"  # checkpoints of layers that wait in host memory
KERNELS = "kernels are predicted as Liger's, which fuse the same parts, and adapters as PEFT's"


def read(path: Path, num_gpus: int | None = None) -> Read:
    """Read a configuration of Unsloth.

    Raises:
        ConfigError: something changes the cost in a way that is not modelled; the message has a line for each.
    """
    return from_mapping(read_mapping(path), path.name, Launch(path.parent, num_gpus), Problems())


def from_mapping(content: Mapping[str, Any], where: str, launch: Launch, problems: Problems) -> Read:
    """Return the configuration that Unsloth's sections stand for."""
    values = sectioned(content, SECTIONS) | ({"model": content["model"]} if content.get("model") else {})
    adapts = str(values.get("training.training_type", "lora")).lower() != "full"
    if adapts:
        values |= {"use_peft": True, "training.load_in_4bit": values.get("training.load_in_4bit", True)}
    else:
        values |= {"training.load_in_4bit": None, "torch_dtype": "bfloat16"}
        values = {key: value for key, value in values.items() if not key.startswith("lora.") and value is not None}
    if values.get("lora.target_modules") in ("", []):
        del values["lora.target_modules"]
    arguments = Arguments(Fields(values, where, problems=problems.lines), DIALECT)
    for note in with_kernels(values, "training.gradient_checkpointing"):
        arguments.note(note)
    return read_run(arguments, launch, FORMAT, problems)


def with_kernels(values: dict[str, Any], key: str) -> list[str]:
    """Put Unsloth's kernels and checkpoints in the Trainer's words, and return notes on what stands in for them.

    Args:
        values: of the arguments, which are changed.
        key: of recomputation.
    """
    values["use_liger_kernel"] = True
    written = str(values.get(key, ITS_OWN)).lower()
    values[key] = written not in ("none", "false", "no", "off", "0")
    if written == ITS_OWN:  # unsloth_zoo/gradient_checkpointing.py, a function of autograd of its own
        values |= {"activation_offloading": IN_STREAM, "gradient_checkpointing_kwargs": {"use_reentrant": True}}
    return [KERNELS]
