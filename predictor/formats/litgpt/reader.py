"""Read a configuration of litgpt: pre-training, full fine-tuning or LoRA.

Source of names and defaults: Lightning-AI/litgpt 0.5.13, litgpt/pretrain.py, litgpt/args.py and,
in litgpt/finetune, full.py and lora.py (setup).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from predictor.core.base.errors import ConfigError
from predictor.core.base.read_yaml import load_foreign
from predictor.core.schema.problems import Problems
from predictor.core.schema.read import Read
from predictor.core.workload.frameworks import LITGPT, TORCH_ATTENTION
from predictor.formats.fields import Fields, settled_gpus
from predictor.formats.fsdp_stack import STATES_16
from predictor.formats.known_keys import known_keys, rest
from predictor.formats.litgpt.model import fields_of, model_section

FAMILY = "litgpt"
KEYS = "litgpt"
PRECISIONS = {
    "bf16-true": ("bf16", True),
    "bf16-mixed": ("bf16", False),
    "16-true": ("fp16", True),
    "16-mixed": ("fp16", False),
    "32-true": ("fp32", True),
}
# Adapters by the key that asks for them.
ADAPTERS = {
    "lora_query": (True, ("q",)),
    "lora_key": (False, ("k",)),
    "lora_value": (True, ("v",)),
    "lora_projection": (False, ("attention_output",)),
}
OF_ADAPTERS = ("train", *ADAPTERS, "lora_alpha", "lora_dropout", "lora_head", "lora_mlp", "lora_r", "quantize")
ADAMS = ("AdamW", "Adam", "torch.optim.AdamW", "torch.optim.Adam")


def read(path: Path, num_gpus: int | None = None) -> Read:
    """Read a configuration.

    Args:
        path: the YAML file.
        num_gpus: GPUs of the run, which settle ``devices: auto``.

    Raises:
        ConfigError: something changes the cost in a way that is not modelled; the message has a line for each problem.
    """
    problems, notes = Problems(), list[str]()
    content = load_foreign(path.read_text(encoding="utf-8"))
    whole = Fields(content, path.name, problems=problems.lines)
    train, nothing = whole.section("train"), dict[str, Any]
    tunes = "checkpoint_dir" in content
    has_adapters = tunes and any(key.startswith("lora_") for key in content)
    config = problems.part(Fields({}, path.name), _config, whole)
    model = problems.part(nothing(), model_section, config) if config.values else {}
    unsaid: dict[str, str] = {}
    devices = problems.part(None, _devices, whole, num_gpus, unsaid, notes)
    precision, pure = PRECISIONS[whole.text("precision", "bf16-mixed", PRECISIONS)]
    is_sharded = devices is None or devices > 1
    training: dict[str, Any] = {
        **problems.part(nothing(), _batch, train, tunes, devices),
        "precision": precision,
        "recompute": "full" if tunes and is_sharded else "none",
        "framework": FAMILY,
    }
    training |= {} if model.get("attention") == "unfused" else {"attention_kernel": str(TORCH_ATTENTION)}
    training |= {"compiled": True} if not tunes else {}
    training |= {"optimizer_state_bytes": STATES_16} if pure and precision != "fp32" else {}
    training |= problems.part(nothing(), _adapters, whole, model) if has_adapters else {}
    parallelism = _layout(devices, whole.whole("num_nodes", 1), precision, pure, tunes)
    model |= _length(train, config, tunes, unsaid, notes)
    model |= {"tied_embeddings": True} if train.switch("tie_embeddings") else {}
    problems.part(None, _optimizer, whole)
    holders = [whole, train, *([config] if model.get("num_layers") else [])]
    notes += rest(known_keys(KEYS), "litgpt", holders, OF_ADAPTERS if has_adapters else ("train",))
    problems.check()
    content = {"model": model, "parallelism": parallelism, "training": training}
    tokens = train.values.get("max_tokens")
    if isinstance(tokens, int) and not tunes:
        content["budget"] = {"train_tokens": tokens}
    return Read(content, tuple(notes), unsaid=unsaid)


def _config(whole: Fields) -> Fields:
    """Return the fields of the model, said in the file or by its name.

    Raises:
        ConfigError: there are none.
    """
    for key in ("model_config", "model"):
        if whole.has(key):
            section = whole.section(key)
            return section.section("init_args") if "init_args" in section.values else section
    for key in ("model_name", "checkpoint_dir"):
        if whole.has(key):
            return Fields(fields_of(whole, key, whole.text(key, "")), whole.where, "model.", problems=whole.problems)
    raise ConfigError(f"{whole.where} names no model; give model_name, model_config or checkpoint_dir")


def _devices(whole: Fields, num_gpus: int | None, unsaid: dict[str, str], notes: list[str]) -> int | None:
    """Return the GPUs of the run; None where the file leaves them open."""
    given, nodes = whole.get("devices"), whole.whole("num_nodes", 1)
    given = 1 if given is None and whole.has("checkpoint_dir") else given
    if given in (None, "auto", -1, "-1"):
        if num_gpus is None:
            unsaid["parallelism.data_parallel_size"] = f"{whole.where}: devices are all that a node has"
        return num_gpus
    return settled_gpus(num_gpus, whole.whole("devices", 1) * nodes, whole.where, notes)


def _batch(train: Fields, tunes: bool, devices: int | None) -> dict[str, Any]:
    """Return the batch: samples of a step are shared out whole micro-batches at a time."""
    micro = train.whole("micro_batch_size", 1 if tunes else 4)
    total = train.whole("global_batch_size", 16 if tunes else 512)
    if devices is None:
        return {"micro_batch_size": micro, "global_batch_size": total}
    return {"micro_batch_size": micro, "num_micro_batches": max(1, total // devices // micro)}


def _layout(devices: int | None, nodes: int, precision: str, pure: bool, tunes: bool) -> dict[str, Any]:
    """Return the section ``parallelism``: FSDP with several GPUs, of a node each in pre-training."""
    if devices == 1:
        return {"data_parallel_size": 1, "zero_stage": 0}
    keys: dict[str, Any] = LITGPT.section("parallelism")
    keys["fp32_parameters"] = not pure and precision != "fp32"
    keys |= {} if devices is None else {"data_parallel_size": devices}
    if not tunes and devices is not None and nodes > 1:
        keys["zero_group_size"] = devices // nodes
    return keys


def _length(train: Fields, config: Fields, tunes: bool, unsaid: dict[str, str], notes: list[str]) -> dict[str, Any]:
    """Return the key of a sample's length."""
    length = train.optional_whole("max_seq_length")
    longest = config.whole("block_size", 4096)
    if not tunes:
        return {"sequence_length": min(length or longest, longest)}
    if length is None:
        unsaid["model.sequence_length"] = (
            f"{train.where}: samples are as long as those of the data (train.max_seq_length)"
        )
        return {}
    notes.append(
        f"{train.where}: samples are predicted as long as train.max_seq_length; set training.mean_sequence_length"
    )
    return {"sequence_length": length}


def _adapters(whole: Fields, model: dict[str, Any]) -> dict[str, Any]:
    """Return the key ``lora``.

    Raises:
        ConfigError: an adapter, or a base in low precision, is not modelled.
    """
    targets = [name for key, (default, names) in ADAPTERS.items() for name in names if whole.switch(key, default)]
    if whole.switch("lora_mlp"):
        targets += ["ffn_up", "ffn_down"] if model.get("activation") == "gelu" else ["gate", "up", "ffn_down"]
    if whole.switch("lora_head"):
        raise whole.error("lora_head", "an adapter of the output projection is not modelled; set it to false")
    if not targets:
        raise ConfigError(f"{whole.where}: no key such as lora_query asks for an adapter")
    whole.get("lora_alpha")
    keys: dict[str, Any] = {"rank": whole.whole("lora_r", 8), "targets": targets}
    keys |= {"dropout": rate} if (rate := whole.real("lora_dropout", 0.05)) else {}
    quantized = whole.get("quantize")
    if quantized is not None:
        if quantized not in ("bnb.nf4", "bnb.nf4-dq", "bnb.int8-training"):
            raise whole.error("quantize", "only bnb.nf4, bnb.nf4-dq and bnb.int8-training are modelled")
        keys["quantized_base"] = {"bnb.nf4": "nf4", "bnb.nf4-dq": "nf4_double"}.get(quantized, "int8")
    return {"lora": keys}


def _optimizer(whole: Fields) -> None:
    value = whole.get("optimizer")
    name = value.get("class_path") if isinstance(value, dict) else value
    if name is not None and name not in ADAMS:
        raise whole.error("optimizer", f"only Adam is modelled: {', '.join(ADAMS)}")
