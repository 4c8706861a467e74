"""Read a YAML of Oumi whose trainer is Hugging Face's, one of TRL's that generates nothing, or its own.

Source of names and defaults: oumi-ai/oumi, src/oumi/core/configs/params (model_params.py, training_params.py,
peft_params.py, fsdp_params.py, deepspeed_params.py) and training_config.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from predictor.core.base.read_yaml import load_foreign
from predictor.core.schema.problems import Problems
from predictor.core.schema.read import Read
from predictor.formats.fields import Fields
from predictor.formats.interpolation import filled
from predictor.formats.trainer.arguments import Arguments, Dialect, sectioned
from predictor.formats.trainer.layout import Launch
from predictor.formats.trainer.preference import named, other_objective
from predictor.formats.trainer.run import read_run

FORMAT = "Oumi YAML"
DIALECT = Dialect(
    "Oumi",
    "oumi",
    {
        "model.model_name": "model_name_or_path",
        "model.model_max_length": "max_length",
        "model.torch_dtype_str": "torch_dtype",
        "model.attn_implementation": "attn_implementation",
        "model.enable_liger_kernel": "use_liger_kernel",
        "model.compile": "torch_compile",
        "training.compile": "torch_compile",
        "training.per_device_train_batch_size": "per_device_train_batch_size",
        "training.gradient_accumulation_steps": "gradient_accumulation_steps",
        "training.enable_gradient_checkpointing": "gradient_checkpointing",
        "training.gradient_checkpointing_kwargs": "gradient_checkpointing_kwargs",
        "training.optimizer": "optim",
        "training.use_peft": "use_peft",
        "training.max_steps": "max_steps",
        "peft.lora_r": "lora_r",
        "peft.lora_dropout": "lora_dropout",
        "peft.lora_target_modules": "lora_target_modules",
        "peft.lora_modules_to_save": "lora_modules_to_save",
        "peft.bnb_4bit_quant_type": "bnb_4bit_quant_type",
    },
    {"torch_dtype": "auto"},
    ("training.trainer_type", "training.mixed_precision_dtype", "peft.q_lora", "peft.q_lora_bits"),
)
TRAINERS = ("HF", "TRL_SFT", "OUMI")
SECTIONS = ("model", "training", "peft")
OF_BITS = {4: "load_in_4bit", 8: "load_in_8bit"}
# Keys of a DeepSpeed configuration outside of its section on ZeRO.
AROUND_ZERO = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping")


def read(path: Path, num_gpus: int | None = None) -> Read:
    """Read a configuration of Oumi.

    Raises:
        ConfigError: something changes the cost in a way that is not modelled; the message has a line for each.
    """
    content = filled(load_foreign(path.read_text(encoding="utf-8-sig")), path.name)
    return from_mapping(content, path.name, Launch(path.parent, num_gpus), Problems())


def from_mapping(content: Mapping[str, Any], where: str, launch: Launch, problems: Problems) -> Read:
    """Return the configuration that Oumi's sections stand for."""
    values = sectioned(content, SECTIONS)
    mixed = str(values.get("training.mixed_precision_dtype", "none")).lower()
    values |= {mixed: True} if mixed in ("bf16", "fp16") else {}
    if values.get("peft.q_lora"):
        bits = values.get("peft.q_lora_bits", 4)
        values |= {OF_BITS[bits]: True} if bits in OF_BITS else {}
    data = (content.get("data") or {}).get("train") or {}
    if data.get("pack"):
        values["packing"] = True
    values |= _layout(content)
    arguments = Arguments(Fields(values, where, problems=problems.lines), DIALECT)
    trainer = str(values.get("training.trainer_type", "HF")).upper()
    objective = named(trainer.removeprefix("TRL_").lower())
    if trainer not in TRAINERS and objective is None:
        problems.lines.append(str(other_objective(arguments, "training.trainer_type")))
    return read_run(arguments, launch, FORMAT, problems, objective)


def _layout(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return FSDP or DeepSpeed in the Trainer's words; neither: DDP."""
    fsdp, engine = content.get("fsdp") or {}, content.get("deepspeed") or {}
    if engine.get("enable_deepspeed"):
        if engine.get("deepspeed_config_path"):
            return {"deepspeed": engine["deepspeed_config_path"]}
        zero = {key: value for key, value in engine.items() if value is not None and not key.startswith("enable_")}
        around = {key: zero.pop(key) for key in AROUND_ZERO if key in zero}
        stage = str(zero.pop("zero_stage", 0)).rpartition("_")[2]  # ZERO_3, or its number
        half = {key: {"enabled": "auto"} for key in ("bf16", "fp16")}
        zero = {key: value for key, value in zero.items() if key not in ("precision", "steps_per_print")}
        return {"deepspeed": {"zero_optimization": {"stage": int(stage or 0), **zero}, **half, **around}}
    if not fsdp.get("enable_fsdp"):
        return {}
    # forward_prefetch and state_dict_type change no traffic; how weights are wrapped is accelerate's to say.
    keys = {"sharding_strategy": "sharding_strategy", "cpu_offload": "offload_params"}
    section = {f"fsdp_{ours}": fsdp[key] for key, ours in keys.items() if fsdp.get(key) is not None}
    return {"fsdp": ["full_shard"], "fsdp_config": section}
