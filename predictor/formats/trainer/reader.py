"""Read TrainingArguments as JSON or YAML, TRL's YAML among them, and a Trainer's trainer_state.json."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from predictor.core.base.read_yaml import read_mapping
from predictor.core.schema.problems import Problems
from predictor.core.schema.read import Read
from predictor.core.workload.software import Framework
from predictor.formats.fields import Fields
from predictor.formats.trainer.arguments import Arguments, Dialect
from predictor.formats.trainer.layout import Launch
from predictor.formats.trainer.preference import named
from predictor.formats.trainer.run import read_run
from predictor.formats.trainer.sections import flattened, has_sections, says_precision
from predictor.formats.trainer.unsloth import ITS_OWN, with_kernels

FORMAT = "Hugging Face Trainer arguments"
STATE = "Hugging Face trainer_state.json"
NAMES = {
    "block_size": "max_length",
    "max_seq_length": "max_length",
    "max_seq_len": "max_length",
    "model_max_length": "max_length",
    "cutoff_len": "max_length",
    "model_name": "model_name_or_path",
    "model_id": "model_name_or_path",
    "base_model": "model_name_or_path",
    "base_model_path": "model_name_or_path",
    "base_model_name": "model_name_or_path",
    "model_path": "model_name_or_path",
    "student_model_path": "model_name_or_path",
    "lora_rank": "lora_r",
    "lora_target": "lora_target_modules",
    "target_modules": "lora_target_modules",
    "target_parameters": "lora_target_parameters",
    "trainable": "lora_target_modules",
    "modules_to_save": "lora_modules_to_save",
    "use_lora": "use_peft",
    "lora_enable": "use_peft",
    "lora": "use_peft",
    "use_peft_lora": "use_peft",
    "q_lora": "load_in_4bit",
    "qlora": "load_in_4bit",
    "use_qlora": "load_in_4bit",
    "use_4bit": "load_in_4bit",
    "use_8bit": "load_in_8bit",
    "use_4bit_quantization": "load_in_4bit",
    "use_8bit_quantization": "load_in_8bit",
    "use_bnb_nested_quant": "bnb_4bit_use_double_quant",
    "use_nested_quant": "bnb_4bit_use_double_quant",
    "double_quant": "bnb_4bit_use_double_quant",
    "flash_attn": "use_flash_attn",
}
TRAINER = Dialect("transformers", "trainer", NAMES)
# trl/trainer/base_config.py, sft_config.py and model_config.py; recipes before them say all three themselves.
TRL = Dialect(
    "TRL",
    "trainer",
    NAMES,
    {
        "max_length": 1024,
        "gradient_checkpointing": True,
        "bf16": "auto",
        "lora_r": 16,
        "dtype": "float32",
    },
)
PARTS = (("max_source_length", "max_target_length"), ("max_input_length", "max_output_length"))
# Arguments of TRL alone; max_seq_length and dataset_mixer are of releases that had the Trainer's own defaults.
OF_TRL = ("packing", "dataset_mixture", "dataset_text_field", "assistant_only_loss", "completion_only_loss")
OF_OLDER_TRL = ("max_seq_length", "dataset_mixer")
OLDER_TRL = Dialect("TRL", "trainer", NAMES, {"max_length": 1024, "dtype": "float32", "use_reentrant": True})


def read(path: Path, num_gpus: int | None = None) -> Read:
    """Read the arguments of a Trainer.

    Args:
        path: of a JSON or YAML file.
        num_gpus: of the run, where it is known.

    Raises:
        ConfigError: something changes the cost in a way that is not modelled; the message has a line for each.
    """
    content, launch, objective = read_mapping(path), Launch(path.parent, num_gpus), None
    if not has_sections(content):
        objective = _of_method(path, content)
        content = {key: value for key, value in content.items() if key != "method" or objective is None}
        return from_arguments(content, path.name, launch, Problems(), objective=objective)
    content, note, objective = flattened(content, path.name)
    launch.notes.append(note)
    objective = objective or _of_method(path, content)
    read = from_arguments(content, path.name, launch, Problems(), objective=objective)
    if says_precision(content) or content.get("gradient_checkpointing") == ITS_OWN:
        return read
    training = {key: value for key, value in read.content["training"].items() if key != "precision"}
    why = f"{path.name} says no precision, such as bf16: true; its program may set another"
    return replace(
        read, content={**read.content, "training": training}, unsaid={**read.unsaid, "training.precision": why}
    )


def _of_method(path: Path, content: Mapping[str, Any]) -> str | None:
    """Return the objective that a file says, or that one with a preference's « beta » is named after (dpo.yaml)."""
    words = [str(content.get("method", "")), *(re.split(r"[^a-z]+", path.stem.lower()) if "beta" in content else [])]
    return next((known for word in words if (known := named(word)) is not None), None)


def from_arguments(
    content: Mapping[str, Any],
    where: str,
    launch: Launch,
    problems: Problems,
    prefix: str = "",
    is_trl: bool = False,
    objective: str | None = None,
) -> Read:
    """Return the configuration that a Trainer's arguments by name stand for; ``objective``: of ``read_run``."""
    values = {key: value for key, value in content.items() if value is not None}
    dialect = TRL if is_trl or any(key in values for key in OF_TRL) else TRAINER
    if any(key in values for key in OF_OLDER_TRL):
        dialect = OLDER_TRL
    if any(key in values for key in ("lora_r", "lora_rank", "lora_target_modules")):
        values.setdefault("use_peft", True)
    _of_scripts(values)
    if values.get("gradient_checkpointing") == ITS_OWN:
        launch.notes += [f"{where}: {note}" for note in with_kernels(values, "gradient_checkpointing")]
        values["bf16"] = not values.get("fp16")  # its trainers take the model's 16 bits where none are named
    arguments = Arguments(Fields(values, where, prefix, problems=problems.lines), dialect)
    return read_run(arguments, launch, FORMAT, problems, objective)


def _of_scripts(values: dict[str, Any]) -> None:
    """Put what widespread scripts say otherwise in the Trainer's words."""
    if isinstance(values.get("model"), str) and "model_name_or_path" not in values:
        values["model_name_or_path"] = values.pop("model")
    if "block_size" in values:  # run_clm.py: group_texts
        values["fills_sequences"] = True
    if "use_reentrant" in values:
        values.setdefault("gradient_checkpointing_kwargs", {"use_reentrant": values.pop("use_reentrant")})
    for pair in PARTS:
        parts = [values.pop(key, None) for key in pair]
        if all(isinstance(part, int) for part in parts):  # a sample is its source and its target
            values.setdefault("max_length", sum(parts))
    if values.get("deepspeed") is True:  # a switch beside DeepSpeed's own arguments
        del values["deepspeed"]
        named, stage = values.pop("deepspeed_config", None), values.pop("zero_stage", None)
        if named is not None:
            values["deepspeed"] = named
        elif isinstance(stage, str):
            values["deepspeed"] = stage  # a variable that its script does not set
        elif isinstance(stage, int):  # DeepSpeedExamples, dschat/utils/ds_utils.py
            offload = {"device": "cpu" if values.pop("offload", False) else "none"}
            zero = {"stage": stage, "overlap_comm": True, "offload_param": offload, "offload_optimizer": offload}
            values["deepspeed"] = {"zero_optimization": zero, "fp16": {"enabled": "auto"}, "bf16": {"enabled": "auto"}}
        if stage is not None:
            values.setdefault("dtype", "fp16")


def read_state(path: Path, num_gpus: int | None = None) -> Read:
    """Read a trainer_state.json: the batch of a process and the number of steps, and nothing on model or layout.

    Source: huggingface/transformers, src/transformers/trainer_callback.py (TrainerState).
    """
    values = read_mapping(path)
    where = path.name
    unsaid = {
        "model.num_layers": f"{where} names no model; take its config.json in front (from: [config.json, {where}]), or",
        "model.sequence_length": f"{where} says no sequence length",
        "training.num_micro_batches": f"{where} says no gradient_accumulation_steps",
        "training.precision": f"{where} says no precision",
        "parallelism.zero_stage": f"{where} says not whether FSDP or DeepSpeed runs (0 is DDP)",
    }
    training: dict[str, Any] = {"framework": str(Framework.TRANSFORMERS)}
    batch = values.get("train_batch_size")
    if isinstance(batch, int) and not isinstance(batch, bool):
        training["micro_batch_size"] = batch
    else:
        unsaid["training.micro_batch_size"] = f"{where} says no train_batch_size"
    parallelism = {} if num_gpus is None else {"data_parallel_size": num_gpus}
    if num_gpus is None:
        unsaid["parallelism.data_parallel_size"] = f"{where} says no number of GPUs"
    notes = (f"{where}: recomputation, adapters and kernels are not said; they are predicted as none",)
    return Read({"model": {"loss": "torch"}, "training": training, "parallelism": parallelism}, notes, STATE, unsaid)
