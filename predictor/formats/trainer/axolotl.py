"""Read a YAML of axolotl.

Source of names and defaults: axolotl-ai-cloud/axolotl, src/axolotl/utils/schemas (config.py, training.py, peft.py,
fsdp.py) and core/builders; integrations/liger and integrations/cut_cross_entropy.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from predictor.core.base.read_yaml import read_mapping
from predictor.core.schema.problems import Problems
from predictor.core.schema.read import Read
from predictor.formats.fields import Fields
from predictor.formats.trainer.arguments import Arguments, Dialect
from predictor.formats.trainer.layout import Launch
from predictor.formats.trainer.preference import named, other_objective
from predictor.formats.trainer.run import read_run

FORMAT = "axolotl YAML"
DIALECT = Dialect(
    "axolotl",
    "axolotl",
    {
        "base_model": "model_name_or_path",
        "micro_batch_size": "per_device_train_batch_size",
        "sequence_len": "max_length",
        "max_packed_sequence_len": "max_length",
        "sample_packing": "packing",
        "pad_to_sequence_len": "pads_to_length",
        "optimizer": "optim",
        "bfloat16": "bf16",
        "float16": "fp16",
        "peft_use_dora": "use_dora",
        "sequence_parallel_degree": "context_parallel_size",
    },
    {"per_device_train_batch_size": 1, "max_length": 512, "bf16": "auto", "optim": "adamw_torch_fused"}
    | {"bnb_4bit_use_double_quant": True},
    ("adapter", "batch_size", "plugins", "rl", "reward_model", "datasets"),
)
ATTENTIONS = {
    "flash_attention": "flash_attention_2",
    "sdp_attention": "sdpa",
    "xformers_attention": "xformers",
    "flex_attention": "flex_attention",
    "sage_attention": "sage",
    "s2_attention": "s2",
    "eager_attention": "eager",
}
ADAPTERS = ("lora", "qlora")
OF_CHECKPOINTS = "hidden_states"  # of activation_offloading: the inputs of layers that run again
CUT_CROSS_ENTROPY = "cut_cross_entropy"


def read(path: Path, num_gpus: int | None = None) -> Read:
    """Read a configuration of axolotl.

    Raises:
        ConfigError: something changes the cost in a way that is not modelled; the message has a line for each.
    """
    return from_mapping(read_mapping(path), path.name, Launch(path.parent, num_gpus), Problems())


def from_mapping(content: Mapping[str, Any], where: str, launch: Launch, problems: Problems) -> Read:
    """Return the configuration that axolotl's keys stand for."""
    values = {key: value for key, value in content.items() if value is not None}
    _adapters(values)
    _precision(values)
    _activations(values)
    for key, name in ATTENTIONS.items():
        if values.pop(key, None) is True:
            values.setdefault("attn_implementation", name)
    if any(CUT_CROSS_ENTROPY in str(plugin) for plugin in values.get("plugins") or ()):
        values.setdefault(CUT_CROSS_ENTROPY, True)
    if values.get("fsdp_config"):
        values.setdefault("fsdp", ["full_shard"])
    whole, micro = values.get("batch_size"), values.get("micro_batch_size")
    if isinstance(whole, int) and isinstance(micro, int) and "gradient_accumulation_steps" not in values:
        values["gradient_accumulation_steps"] = max(1, whole // micro)
    arguments = Arguments(Fields(values, where, problems=problems.lines), DIALECT)
    if (adapter := values.get("adapter")) is not None and adapter not in ADAPTERS:
        arguments.broken("adapter", "only lora and qlora are modelled; remove it to predict full fine-tuning")
    objective = named(str(values.get("rl"))) if values.get("rl") else None
    if values.get("rl") and objective is None:
        problems.lines.append(str(other_objective(arguments, "rl")))
    if values.get("reward_model"):
        objective = "reward"
    return read_run(arguments, launch, FORMAT, problems, objective)


def _adapters(values: dict[str, Any]) -> None:
    """Put what axolotl says of adapters in the Trainer's words."""
    if values.get("adapter") in ADAPTERS:
        values["use_peft"] = True
        values.pop("freeze_mm_modules", None)  # beside adapters all is frozen
    if values.get("adapter") == "qlora":
        values.setdefault("load_in_4bit", True)
    if values.get("load_in_4bit") is True:
        values.pop("quantize_moe_experts", None)  # all frozen products are predicted in four bits
    if values.pop("lora_target_linear", None) is True:
        values["lora_target_modules"] = "all-linear"


def _activations(values: dict[str, Any]) -> None:
    """Put what axolotl says of activations on the host in TRL's words: beside adapters they travel, not recomputed.

    Source: src/axolotl/utils/schemas/validation.py, check_gradient_checkpointing_w_offload; core/builders/base.py,
    _configure_gradient_checkpointing; loaders/model.py, _apply_activation_checkpointing.
    """
    if values.get("gradient_checkpointing") in ("offload", "offload_disk"):
        values |= {"gradient_checkpointing": True, "activation_offloading": True}
    mode = values.get("activation_offloading")
    if mode in ("disk", OF_CHECKPOINTS):  # both TRL's offloader
        values["activation_offloading"] = True
    if mode and mode != OF_CHECKPOINTS and values.get("adapter"):
        values["gradient_checkpointing"] = False


def _precision(values: dict[str, Any]) -> None:
    """Put what axolotl says of precision in the Trainer's words: without a half precision, weights are in fp32."""
    if values.pop("float32", None) is True:
        values["bf16"] = False
    if values.get("bf16") is False and not any(values.get(key) for key in ("fp16", "float16", "bfloat16")):
        values.setdefault("torch_dtype", "float32")
    if values.get("tf32") == "auto":
        del values["tf32"]
