"""Read TrainingArguments as JSON or YAML, TRL's YAML among them, and a Trainer's trainer_state.json."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from predictor.core.base.read_yaml import read_mapping
from predictor.core.schema.problems import Problems
from predictor.core.schema.read import Read
from predictor.core.workload.software import Framework
from predictor.formats.fields import Fields
from predictor.formats.trainer.arguments import Arguments, Dialect
from predictor.formats.trainer.layout import Launch
from predictor.formats.trainer.run import read_run

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
    "lora_rank": "lora_r",
    "lora_target": "lora_target_modules",
    "use_lora": "use_peft",
    "lora_enable": "use_peft",
    "lora": "use_peft",
    "use_4bit": "load_in_4bit",
    "use_8bit": "load_in_8bit",
}
TRAINER = Dialect("transformers", "trainer", NAMES)
# trl/trainer/base_config.py, sft_config.py and model_config.py; recipes before them say all three themselves.
TRL = Dialect(
    "TRL",
    "trainer",
    NAMES,
    {"max_length": 1024, "gradient_checkpointing": True, "bf16": "auto", "use_reentrant": False, "lora_r": 16},
)
# Arguments of TRL alone.
OF_TRL = (
    "packing",
    "dataset_mixer",
    "dataset_mixture",
    "max_seq_length",
    "max_length",
    "dataset_text_field",
    "attn_implementation",
    "use_peft",
    "lora_r",
    "dataset_kwargs",
    "assistant_only_loss",
)


def read(path: Path, num_gpus: int | None = None) -> Read:
    """Read the arguments of a Trainer.

    Args:
        path: of a JSON or YAML file.
        num_gpus: of the run, where it is known.

    Raises:
        ConfigError: something changes the cost in a way that is not modelled; the message has a line for each.
    """
    problems = Problems()
    content = read_mapping(path)
    return from_arguments(content, path.name, Launch(path.parent, num_gpus), problems)


def from_arguments(
    content: Mapping[str, Any], where: str, launch: Launch, problems: Problems, prefix: str = "", is_trl: bool = False
) -> Read:
    """Return the configuration that a Trainer's arguments by name stand for."""
    dialect = TRL if is_trl or any(key in content for key in OF_TRL) else TRAINER
    values = dict(content)
    if any(key in values for key in ("lora_r", "lora_rank", "lora_target_modules")):
        values.setdefault("use_peft", True)
    if "block_size" in values:  # run_clm.py: group_texts
        values["fills_sequences"] = True
    arguments = Arguments(Fields(values, where, prefix, problems=problems.lines), dialect)
    return read_run(arguments, launch, FORMAT, problems)


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
