"""Fine-tuning in a recipe of Megatron-Bridge: adapters, and samples packed into sequences."""

from __future__ import annotations

from typing import Any

from predictor.core.base.errors import ConfigError
from predictor.formats.hub_section import present
from predictor.formats.python_source.values import Record, Unknown

TARGETS = {
    "linear_qkv": "qkv",
    "linear_q": "q",
    "linear_k": "k",
    "linear_v": "v",
    "linear_proj": "attention_output",
    "linear_fc1": "ffn_up",
    "linear_fc1_gate": "gate",
    "linear_fc1_up": "up",
    "linear_fc2": "ffn_down",
    "linear_q_proj": "q_up",
    "linear_q_down_proj": "q_down",
    "linear_q_up_proj": "q_up",
    "linear_kv_down_proj": "kv_down",
    "linear_kv_up_proj": "kv_up",
    "in_proj": "in_projection",
    "out_proj": "out_projection",
}
# Adapters by class, with the layers that they have unless a recipe says others: peft/lora.py and canonical_lora.py.
DEFAULTS = {
    "LoRA": ["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"],
    "CanonicalLoRA": [
        "linear_q",
        "linear_k",
        "linear_v",
        "linear_proj",
        "linear_fc1_up",
        "linear_fc1_gate",
        "linear_fc2",
    ],
}
SWITCHES = {
    "share_expert_adapters": "share_expert_adapters",
    "normalize_moe_lora": "normalize_moe_lora",
    "a2a_experimental": "all_to_all",
}
RANK = 32  # of LoRA's class, peft/lora.py
PACKING = ("offline_packing_specs", "packed_sequence_specs", "enable_offline_packing", "packed_sequence")


def fine_tuning(fields: dict[str, Any], model: dict[str, Any], where: str, notes: list[str]) -> dict[str, Any]:
    """Return the keys of ``training`` on adapters, with a note on packed samples.

    Args:
        fields: of the recipe.
        model: the section ``model`` that was read of it.
        where: the file and the recipe, for messages.
        notes: notes so far.

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
    if not isinstance(peft, Record) or peft.short_kind not in DEFAULTS:
        kind = peft.short_kind if isinstance(peft, Record) else peft
        raise ConfigError(
            f"{where}: peft is {kind}; only LoRA is modelled, and CanonicalLoRA; set it to None to predict full "
            "fine-tuning"
        )
    if peft.fields.get("exclude_modules"):
        raise ConfigError(f"{where}: peft.exclude_modules names what has no adapter; name what has, in target_modules")
    named = peft.fields.get("target_modules", DEFAULTS[peft.short_kind])
    rank = peft.fields.get("dim", RANK)
    unknown = [name for name in named if name not in TARGETS] if isinstance(named, list) else [named]
    if unknown or not isinstance(rank, int):
        raise ConfigError(
            f"{where}: peft has target_modules {unknown or named} and dim {rank}; expected a number, and of "
            f"{', '.join(TARGETS)}"
        )
    switches: dict[str, Any] = {
        ours: peft.fields[key] for key, ours in SWITCHES.items() if isinstance(peft.fields.get(key), bool)
    }
    dropout = peft.fields.get("dropout")
    if isinstance(dropout, int | float) and dropout > 0:
        switches["dropout"] = float(dropout)
    found = present([TARGETS[name] for name in named], model)
    if len(found) < len(named):
        absent = ", ".join(name for name in named if TARGETS[name] not in found)
        notes.append(f"{where}: peft.target_modules: the model has no {absent}, so no adapters there")
    return {"lora": {"rank": rank, "targets": found, **switches}}
