"""Read the arguments of ms-swift (``swift sft``, ``swift pt``).

Source of names and defaults: modelscope/ms-swift, swift/arguments (sft_args.py, tuner_args.py, base_args) and
swift/trainers/arguments.py; those of version 2 (sft_type, model_id_or_path, quantization_bit) among them.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Any

from predictor.core.schema.problems import Problems
from predictor.core.schema.read import Read
from predictor.formats.fields import Fields
from predictor.formats.trainer.arguments import Arguments, Dialect
from predictor.formats.trainer.layout import Launch
from predictor.formats.trainer.precision import HALF, NAMES
from predictor.formats.trainer.run import read_run, refuse_task

FORMAT = "ms-swift command"
DIALECT = Dialect(
    "ms-swift",
    "swift",
    {
        "model": "model_name_or_path",
        "model_id_or_path": "model_name_or_path",
        "lora_rank": "lora_r",
        "target_modules": "lora_target_modules",
        "target_parameters": "lora_target_parameters",
        "lora_dropout_p": "lora_dropout",
        "modules_to_save": "lora_modules_to_save",
        "attn_impl": "attn_implementation",
        "batch_size": "per_device_train_batch_size",
    },
    {
        "per_device_train_batch_size": 1,
        "gradient_checkpointing": True,
        "lora_target_modules": "all-linear",
        "lora_dropout": 0.05,
        "bnb_4bit_use_double_quant": True,
    },
    (
        "tuner_type",
        "train_type",
        "sft_type",
        "quant_bits",
        "quantization_bit",
        "quant_method",
        "task_type",
        "rlhf_type",
    ),
)
TYPES = ("tuner_type", "train_type", "sft_type")
BITS = ("quant_bits", "quantization_bit")
ATTENTIONS = {"flash_attn": "flash_attention_2", "flash_attention_2": "flash_attention_2"}
SAMPLES_OF_A_STEP = 16  # at least, where gradient_accumulation_steps is not said: trainers/arguments.py
VERSION_2 = "default-"  # in front of names of DeepSpeed's configurations


def from_mapping(
    content: Mapping[str, Any],
    where: str,
    launch: Launch,
    problems: Problems,
    prefix: str,
    objective: str | None = None,
) -> Read:
    """Return the configuration that ms-swift's arguments stand for; ``objective``: of ``read_run``."""
    values = {key: value for key, value in content.items() if value is not None}
    kind = str(next((values[key] for key in TYPES if key in values), "lora"))
    if kind == "lora":
        values["use_peft"] = True
    if str(values.get("target_modules")).lower() in ("all", "default", "dense"):
        values["target_modules"] = "all-linear"
    values["attn_impl"] = ATTENTIONS.get(str(values.get("attn_impl")), values.get("attn_impl"))
    if isinstance(named := values.get("deepspeed"), str):
        values["deepspeed"] = named.removeprefix(VERSION_2)
    half = NAMES.get(str(values.get("torch_dtype", "bfloat16")), "bf16")  # its models are in 16 bits
    if not {"bf16", "fp16"} & values.keys() and half != "fp32":
        values["fp16" if half == HALF else "bf16"] = True
    bits = next((values[key] for key in BITS if key in values), None)
    if bits == 4 and values.get("quant_method", "bnb") == "bnb":
        values["load_in_4bit"] = True
    micro = values.get("per_device_train_batch_size", values.get("batch_size", 1))
    if "gradient_accumulation_steps" not in values and isinstance(micro, int) and launch.num_gpus is not None:
        values["gradient_accumulation_steps"] = max(1, ceil(SAMPLES_OF_A_STEP / micro / launch.num_gpus))
    values = {key: value for key, value in values.items() if value is not None}
    # trainers/mixin.py: checkpoints are entered again, except by replicas of DDP.
    enters_again = launch.num_gpus == 1 or any(key in values for key in ("deepspeed", "fsdp"))
    values.setdefault("gradient_checkpointing_kwargs", {"use_reentrant": enters_again})
    arguments = Arguments(Fields(values, where, prefix, problems=problems.lines), DIALECT)
    if "gradient_accumulation_steps" not in values:
        arguments.unsaid["training.num_micro_batches"] = (
            f"{where}: gradient_accumulation_steps follow from the number of GPUs, which it does not say"
        )
    if kind not in ("lora", "full"):
        key = next(key for key in TYPES if key in values)
        arguments.broken(key, "only lora and full are modelled; write one of them")
    if values.get("task_type", "causal_lm") != "causal_lm":
        problems.lines.append(str(refuse_task(arguments, "task_type", "training of other tasks")))
    if bits is not None and "load_in_4bit" not in values:
        key = next(key for key in BITS if key in values)
        arguments.broken(key, "only four bits of bitsandbytes are modelled; write 4, with method bnb")
    return read_run(arguments, launch, FORMAT, problems, objective)
