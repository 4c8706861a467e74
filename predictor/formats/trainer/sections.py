"""YAML of a program of one's own, whose sections hold a Trainer's arguments under the Trainer's own names.

Such files differ in their sections and agree in the names at their ends: model.name, training.bf16, lora.r.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from predictor.core.base.errors import ConfigError
from predictor.formats.known_keys import speaks_of_cost
from predictor.formats.trainer.preference import named

BATCH = "per_device_train_batch_size"
GENERATING = re.compile(r"grpo|ppo|rloo|rlhf|rlvr|\brl\b|gkd|distil")
MODEL = re.compile(r"(?:base_?)?model\w*")
ADAPTERS = re.compile(r"q?lora\w*|peft\w*|adapters?")
OTHERS = re.compile(r"quanti\w*|bnb\w*|bitsandbytes\w*|precision|optimi[sz]er|optim")
# Names at the end, by kind of section.
OF_MODEL = dict.fromkeys(
    ("name", "id", "path", "model", "hf_id", "model_path", "name_or_path", "base_model_name_or_path", "base"),
    "model_name_or_path",
)
OF_TRAINING = {"optimizer": "optim", "model": "model_name_or_path", "model_path": "model_name_or_path"}
OF_TRAINING |= dict.fromkeys(("is_peft", "is_lora", "enable_lora", "lora_enabled", "peft_enabled"), "use_peft")
LENGTHS = ("max_seq_length", "max_seq_len", "max_length", "cutoff_len", "block_size")  # of data sections as well
OF_ADAPTERS = {"r": "lora_r", "rank": "lora_r", "dropout": "lora_dropout", "alpha": "lora_alpha", "bias": "lora_bias"}
OF_ADAPTERS |= {"use_gradient_checkpointing": "gradient_checkpointing"}  # as Unsloth's get_peft_model has it
OF_ADAPTERS |= {"enabled": "use_peft", "enable": "use_peft", "use_lora": "use_peft"}
KINDS = ("method", "kind", "type", "peft_type", "name")
OF_OPTIMIZER = {"name": "optim", "type": "optim", "optimizer": "optim"}
# Sections of what runs beside a training, or before it.
OF_NO_STEP = re.compile(
    r"data|tokeni[sz]er|eval|reward|vllm|sampl|generat|infer|log|track|wandb|experiment|env|hub|export|merge"
)
DEEPEST = 4  # sections in sections


def has_sections(content: Mapping[str, Any]) -> bool:
    """Return whether a section of a file holds a Trainer's batch, and no other reader's."""
    return BATCH not in content and next(_trainings(content), None) is not None


def flattened(content: Mapping[str, Any], where: str) -> tuple[dict[str, Any], str, str | None]:
    """Return a Trainer's arguments by name, a note on what of the file is read, and the objective of its section.

    Raises:
        ConfigError: several sections hold a training, or one that generates text.
    """
    found = list(_trainings(content))
    if len(found) > 1:
        listed = ", ".join(".".join(path) for path in found)
        raise ConfigError(f"{where} has several trainings: {listed}; leave one of them in the file")
    training = found[0]
    if (other := next((part for part in training if GENERATING.search(part.lower())), None)) is not None:
        raise ConfigError(f"{where}: the training stands under {other}, which generates text; that is not modelled")
    objective = next((known for part in training if (known := named(part.lower())) is not None), None)
    values: dict[str, Any] = {}
    left: list[str] = []
    for path, section in _sections(content):
        name = path[-1] if path else ""
        scalars = {key: value for key, value in section.items() if not isinstance(value, Mapping) and value is not None}
        if path == training[: len(path)]:
            values |= {OF_TRAINING.get(key, key): value for key, value in scalars.items()}
        elif MODEL.fullmatch(name):
            values |= {OF_MODEL.get(key, key): value for key, value in scalars.items()}
        elif ADAPTERS.fullmatch(name):
            values = _adapters(name, scalars) | values
        elif OTHERS.fullmatch(name):
            of_optimizer = OF_OPTIMIZER if name.startswith("optim") else {}
            values |= {of_optimizer.get(key, key): value for key, value in scalars.items()}
        elif length := next(((key, scalars[key]) for key in LENGTHS if key in scalars), None):
            values.setdefault(*length)
        elif costly := next((key for key, value in scalars.items() if _may_cost(path, key, value)), None):
            raise ConfigError(
                f"{where}: {'.'.join((*path, costly))} is {scalars[costly]!r}, in a section that is not read; write it "
                "as a Trainer has it beside the batch, or remove it if it changes no cost"
            )
        elif scalars and not any(".".join(path).startswith(f"{other}.") for other in left):
            left.append(".".join(path))
    if values.get("use_peft") is False:
        values = {
            key: value for key, value in values.items() if not key.startswith("lora_") and key != "target_modules"
        }
    note = f"{where} is of a program of its own, read by the last parts of its names as a Trainer's"
    return values, f"{note}; not read: {', '.join(left)}" if left else note, objective


def _may_cost(path: tuple[str, ...], key: str, value: object) -> bool:
    """Return whether a key of a section that is not read speaks of what changes the cost of a step."""
    return not any(map(OF_NO_STEP.match, path)) and speaks_of_cost(".".join((*path, key)), value)


def _adapters(name: str, scalars: Mapping[str, Any]) -> dict[str, Any]:
    """Return a section on adapters in the Trainer's words."""
    kind = str(next((scalars[key] for key in KINDS if key in scalars), name)).lower()
    if kind in ("none", "full"):
        return {"use_peft": False}
    values = {OF_ADAPTERS.get(key, key): value for key, value in scalars.items() if key not in KINDS}
    return {"use_peft": True} | ({"load_in_4bit": True} if kind == "qlora" else {}) | values


def _sections(
    content: Mapping[str, Any], path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Mapping[str, Any]]]:
    """Yield the sections of a file, outer ones first, each with the names that lead to it."""
    yield path, content
    for key, value in content.items():
        if isinstance(value, Mapping) and len(path) < DEEPEST:
            yield from _sections(value, (*path, str(key)))


def _trainings(content: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    return (path for path, section in _sections(content) if path and section.get(BATCH) is not None)
