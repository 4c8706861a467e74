"""Read a YAML or JSON of LLaMA-Factory: that of its trainer on transformers, and that of version 1's own.

Source of names and defaults: hiyouga/LLaMA-Factory, src/llamafactory/hparams (model_args.py, data_args.py,
finetuning_args.py), model/adapter.py and model/model_utils/checkpointing.py; src/llamafactory/v1/config.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

from predictor.core.base.errors import ConfigError
from predictor.core.base.read_yaml import read_mapping
from predictor.core.schema.problems import Problems
from predictor.core.schema.read import Read
from predictor.formats.fields import Fields
from predictor.formats.trainer.arguments import Arguments, Dialect
from predictor.formats.trainer.layout import Launch
from predictor.formats.trainer.preference import named, other_objective
from predictor.formats.trainer.run import IN_STREAM, read_run

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
        "double_quantization": "bnb_4bit_use_double_quant",
    },
    {
        "max_length": 2048,
        "lora_target_modules": "all",
        "gradient_checkpointing": True,
        "bnb_4bit_use_double_quant": True,
        "use_reentrant": True,
    },
    (
        "stage",
        "finetuning_type",
        "quantization_bit",
        "quantization_method",
        "use_reentrant_gc",
        "pure_bf16",
        "neat_packing",
        "fp8",
    ),
)
OF_REPLICA = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")
MEGATRON = {*OF_REPLICA[:2], "expert_model_parallel_size", "use_mca"}
BATCH = ("per_device_train_batch_size", "gradient_accumulation_steps")
STAGES = ("sft", "pt")
WITHOUT_REFERENCE = ("orpo", "simpo")  # of pref_loss
TUNINGS = ("lora", "full")
ATTENTIONS = {"auto": "sdpa", "disabled": "eager", "flash_attention2": "flash_attention_2", "fa2": "flash_attention_2"}
VALUES_OF_BITS = {4: "load_in_4bit", 8: "load_in_8bit"}
BNB = ("bnb", "bitsandbytes")
# train/fp8_utils.py: torchao scales rows, Transformer Engine tensors, by what was seen before.
FP8_RECIPES = {"auto": "fp8_rowwise", "torchao": "fp8_rowwise", "te": "fp8_delayed"}
# Of version 1: sections that name a plugin, and arguments by the names that the versions before have.
PLUGINS = ("peft_config", "dist_config", "quant_config")
RENAMED = {"model": "model_name_or_path", "micro_batch_size": "per_device_train_batch_size"}
OF_A_TRAINING = {"stage", "do_train", "dataset", "train_dataset", "output_dir", "per_device_train_batch_size"}
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
    if "model_name_or_path" not in values and isinstance(values.get("model"), str):
        values = _of_version_1(values)
    _check_training(values, where, prefix)
    if MEGATRON & values.keys():
        return _on_megatron(values, where, launch, problems, prefix)
    stage, tuning = str(values.get("stage", "sft")), str(values.get("finetuning_type", "lora"))
    bits, method = values.get("quantization_bit"), values.get("quantization_method", "bnb")
    is_known = method in BNB and isinstance(bits, int) and bits in VALUES_OF_BITS
    if isinstance(bits, int) and is_known:
        values[VALUES_OF_BITS[bits]] = True
    _samples(values, stage)
    _precision(values, tuning)
    if values.pop("use_muon", False):
        values["optim"] = "muon"
    arguments = Arguments(Fields(values, where, prefix, problems=problems.lines), DIALECT)
    objective = None if stage in STAGES else named(stage)
    if stage == "dpo" and values.get("pref_loss") in WITHOUT_REFERENCE:
        objective = str(values["pref_loss"])
    if stage not in STAGES and objective is None:
        problems.lines.append(str(other_objective(arguments, "stage")))
    if tuning not in TUNINGS:
        arguments.broken("finetuning_type", "only lora and full are modelled; write one of them")
    if values.get("fp8"):
        if (backend := str(values.get("fp8_backend", "auto"))) in FP8_RECIPES:
            values["gemm_recipe"] = FP8_RECIPES[backend]
        else:
            arguments.broken("fp8_backend", f"expected {', '.join(FP8_RECIPES)}")
    if bits is not None and not is_known:
        arguments.broken("quantization_bit", "only four bits of bitsandbytes are modelled; write 4, with method bnb")
    return read_run(arguments, launch, FORMAT, problems, objective)


def _check_training(values: Mapping[str, Any], where: str, prefix: str) -> None:
    """Refuse files of chats, exports and evaluations.

    Raises:
        ConfigError: this is one.
    """
    if not values.get("do_train") and (found := next((key for key in WITHOUT_TRAINING if values.get(key)), None)):
        raise ConfigError(
            f"{where}: {prefix}{found} is {values[found]}; it trains nothing: read the file of a training"
        )
    if not OF_A_TRAINING & values.keys():
        raise ConfigError(
            f"{where}: it has no {prefix}stage, dataset or batch; it trains nothing: read the file of a training"
        )


def _on_megatron(values: dict[str, Any], where: str, launch: Launch, problems: Problems, prefix: str) -> Read:
    """Return a run through mcore_adapter, which takes Megatron-LM's arguments beside LLaMA-Factory's.

    Source: alibaba/ROLL, mcore_adapter/src/mcore_adapter/training_args.py.
    """
    from predictor.formats.trainer import megatron_run  # costs a start that has none

    fields = Fields(values, where, prefix)
    micro, rounds = (fields.whole(key, 1) for key in BATCH)
    ranks = prod(fields.whole(key, 1) for key in OF_REPLICA)
    replicas = max(1, (launch.num_gpus or ranks) // ranks)
    renamed = {"model_name_or_path": "model", "cutoff_len": "max_length", "finetuning_type": "tuner_type"}
    if (stage := str(values.pop("stage", "sft"))) not in STAGES:
        raise ConfigError(
            f"{where}: {prefix}stage is {stage}; on Megatron-core only {' and '.join(STAGES)} are modelled"
        )
    content = {renamed.get(key, key): value for key, value in values.items() if key not in BATCH}
    content |= {"micro_batch_size": micro, "global_batch_size": micro * rounds * replicas}
    content = {"max_length": 2048, "recompute_granularity": "none", "tuner_type": "lora", **content}
    return megatron_run.from_mapping(content, where, launch, problems, prefix, ("LLaMA-Factory", "llama_factory"))


def _samples(values: dict[str, Any], stage: str) -> None:
    """Put attention, packing and recomputation, which is on unless it is disabled, in the Trainer's words."""
    if (written := values.get("flash_attn")) is not None:
        values["flash_attn"] = ATTENTIONS.get(str(written), written)
    if values.get("neat_packing"):
        values["packing"] = True
    elif values.pop("packing", stage == "pt"):
        values["fills_sequences"] = True
    values.pop("gradient_checkpointing", None)  # model_utils/checkpointing.py goes by the other switch
    unsloths = values.pop("use_unsloth_gc", False)
    if values.pop("disable_gradient_checkpointing", False):
        values["gradient_checkpointing"] = False
    elif unsloths:
        values["activation_offloading"] = IN_STREAM
    if values.get("use_reentrant_gc") is False:
        values["gradient_checkpointing_kwargs"] = {"use_reentrant": False}


def _precision(values: dict[str, Any], tuning: str) -> None:
    """Put adapters, and the precision of weights that train, in the Trainer's words."""
    if tuning == "lora":
        values["use_peft"] = True
        return
    values.pop("lora_target", None)
    if values.get("pure_bf16") is True:
        values |= {"bf16": True, "torch_dtype": "bfloat16"}
    elif "fsdp" not in values and (values.get("bf16") or values.get("fp16")):
        values["torch_dtype"] = "float32"  # adapter.py, cast_trainable_params_to_fp32


def _of_version_1(content: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of version 1, whose sections name plugins, as those of the versions before call them."""
    values = {RENAMED.get(key, key): value for key, value in content.items() if key not in PLUGINS}
    adapter, layout, quantized = (content.get(key) or {} for key in PLUGINS)
    values |= {"bf16": content.get("bf16", True), "stage": "sft", "cutoff_len": content.get("cutoff_len", 2048)}
    values["disable_gradient_checkpointing"] = not values.pop("enable_activation_checkpointing", True)
    values["use_reentrant_gc"] = False  # v1/core/base_trainer.py
    kind = adapter.get("name")
    values["finetuning_type"] = kind or "full"
    if kind == "lora":
        names = {"r": "lora_rank", "target_modules": "lora_target"}
        values |= {names.get(key, key): value for key, value in adapter.items() if key != "name"}
        values.setdefault("lora_target", "all")
    values |= {key: value for key, value in quantized.items() if key == "quantization_bit"}
    if layout.get("name") == "deepspeed":
        values["deepspeed"] = layout.get("config_file")
    elif layout:
        values |= {"fsdp": "full_shard", "fsdp_version": 2}
        values["fsdp_config"] = {key: value for key, value in layout.items() if key == "reshard_after_forward"}
    if layout.get("cp_size") not in (None, 1):
        values["cp_size"] = layout["cp_size"]
    return {key: value for key, value in values.items() if value is not None}
