"""Read a YAML or JSON of LLaMA-Factory: that of its trainer on transformers, and that of version 1's own.

Source of names and defaults: hiyouga/LLaMA-Factory, src/llamafactory/hparams (model_args.py, data_args.py,
finetuning_args.py), model/adapter.py and model/model_utils/checkpointing.py; src/llamafactory/v1/config.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from predictor.core.base.errors import ConfigError
from predictor.core.base.read_yaml import read_mapping
from predictor.core.schema.problems import Problems
from predictor.core.schema.read import Read
from predictor.formats.fields import Fields
from predictor.formats.trainer.arguments import Arguments, Dialect
from predictor.formats.trainer.layout import Launch
from predictor.formats.trainer.run import read_run, refuse_task

FORMAT = "LLaMA-Factory YAML"
DIALECT = Dialect(
    "LLaMA-Factory",
    "llama_factory",
    {
        "cutoff_len": "max_length",
        "lora_rank": "lora_r",
        "lora_target": "lora_target_modules",
        "additional_target": "lora_modules_to_save",
        "flash_attn": "attn_implementation",
        "enable_liger_kernel": "use_liger_kernel",
        "quantization_type": "bnb_4bit_quant_type",
    },
    {"max_length": 2048, "lora_target_modules": "all"},
    (
        "stage",
        "finetuning_type",
        "quantization_bit",
        "quantization_method",
        "use_reentrant_gc",
        "pure_bf16",
        "neat_packing",
    ),
)
STAGES = ("sft", "pt")
TUNINGS = ("lora", "full")
ATTENTIONS = {"auto": "sdpa", "disabled": "eager", "flash_attention2": "flash_attention_2", "fa2": "flash_attention_2"}
VALUES_OF_BITS = {4: "load_in_4bit", 8: "load_in_8bit"}
BNB = ("bnb", "bitsandbytes")
WITHOUT_TRAINING = ("export_dir", "infer_backend", "predict_with_generate", "do_predict")


def read(path: Path, num_gpus: int | None = None) -> Read:
    """Read a configuration of LLaMA-Factory.

    Raises:
        ConfigError: something changes the cost in a way that is not modelled; the message has a line for each.
    """
    return from_mapping(read_mapping(path), path.name, Launch(path.parent, num_gpus), Problems())


def from_mapping(content: Mapping[str, Any], where: str, launch: Launch, problems: Problems, prefix: str = "") -> Read:
    """Return the configuration that LLaMA-Factory's keys stand for."""
    values = {key: value for key, value in content.items() if value is not None}
    if not values.get("do_train") and (found := next((key for key in WITHOUT_TRAINING if values.get(key)), None)):
        raise ConfigError(
            f"{where}: {prefix}{found} is {values[found]}; it trains nothing: read the file of a training"
        )
    stage, tuning = str(values.get("stage", "sft")), str(values.get("finetuning_type", "lora"))
    if tuning == "lora":
        values["use_peft"] = True
    else:
        values.pop("lora_target", None)
    _attention(values)
    bits = values.get("quantization_bit")
    if bits is not None and values.get("quantization_method", "bnb") in BNB and bits in VALUES_OF_BITS:
        values[VALUES_OF_BITS[bits]] = True
    if values.get("neat_packing"):
        values["packing"] = True
    elif values.pop("packing", stage == "pt"):
        values["fills_sequences"] = True
    values["gradient_checkpointing"] = not values.pop("disable_gradient_checkpointing", False)
    if values.get("use_reentrant_gc") is False:
        values["gradient_checkpointing_kwargs"] = {"use_reentrant": False}
    if values.get("pure_bf16") is True:
        values |= {"bf16": True, "torch_dtype": "bfloat16"}
    elif tuning != "lora" and (values.get("bf16") or values.get("fp16")):
        values["torch_dtype"] = "float32"  # weights that train are widened: adapter.py, cast_trainable_params_to_fp32
    arguments = Arguments(Fields(values, where, prefix, problems=problems.lines), DIALECT)
    if stage not in STAGES:
        problems.lines.append(str(refuse_task(arguments, "stage", "preference and reinforcement learning")))
    if tuning not in TUNINGS:
        arguments.broken("finetuning_type", "only lora and full are modelled; write one of them")
    if bits is not None and (bits not in VALUES_OF_BITS or values.get("quantization_method", "bnb") not in BNB):
        arguments.broken("quantization_bit", "only four bits of bitsandbytes are modelled; write 4, with method bnb")
    return read_run(arguments, launch, FORMAT, problems)


def _attention(values: dict[str, Any]) -> None:
    written = values.get("flash_attn")
    if written is not None:
        values["flash_attn"] = ATTENTIONS.get(str(written), written)
