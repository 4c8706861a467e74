"""Fine-tuning in a recipe of Megatron-Bridge: adapters, and samples packed into sequences."""

from __future__ import annotations

from typing import Any

from predictor.base.errors import ConfigError
from predictor.configuration.readers.python_source.values import Record, Unknown

TARGETS = {
    "linear_qkv": "qkv",
    "linear_proj": "attention_output",
    "linear_fc1": "ffn_up",
    "linear_fc2": "ffn_down",
}
RANK = 32  # of LoRA's class, peft/lora.py
PACKING = ("offline_packing_specs", "packed_sequence_specs", "enable_offline_packing", "packed_sequence")


def fine_tuning(fields: dict[str, Any], where: str, notes: list[str]) -> dict[str, Any]:
    """Return the keys of ``training`` on adapters, with a note on packed samples.

    Raises:
        ConfigError: the adapters are not modelled, or cannot be told.
    """
    dataset = fields.get("dataset")
    held = dataset.fields if isinstance(dataset, Record) else {}
    if any(held.get(key) not in (None, False) for key in PACKING):
        notes.append(
            f"{where}: samples are packed; attention is predicted over whole sequences: set training.document_tokens"
        )
    peft = fields.get("peft")
    if peft is None:
        return {}
    if isinstance(peft, Unknown):
        raise ConfigError(f"{where}: peft cannot be read: {peft.why}")
    if not isinstance(peft, Record) or peft.short_kind != "LoRA":
        kind = peft.short_kind if isinstance(peft, Record) else peft
        raise ConfigError(f"{where}: peft is {kind}; only LoRA is modelled, set it to None to predict full fine-tuning")
    named = peft.fields.get("target_modules", list(TARGETS))
    rank = peft.fields.get("dim", RANK)
    unknown = [name for name in named if name not in TARGETS] if isinstance(named, list) else [named]
    if unknown or not isinstance(rank, int):
        raise ConfigError(
            f"{where}: peft has target_modules {unknown or named} and dim {rank}; expected a number, and of "
            f"{', '.join(TARGETS)}"
        )
    return {"lora": {"rank": rank, "targets": [TARGETS[name] for name in named]}}
