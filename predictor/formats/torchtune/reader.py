"""Read a recipe's configuration of torchtune: model by its builder, batch, precision and FSDP2.

Source of names and defaults: pytorch/torchtune 0.6.1, recipes/full_finetune_distributed.py,
recipes/lora_finetune_distributed.py and torchtune/training/_distributed.py (shard_model).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from predictor.core.base.errors import ConfigError
from predictor.core.base.read_yaml import load_foreign
from predictor.core.schema.problems import Problems
from predictor.core.schema.read import Read
from predictor.formats.fields import Fields
from predictor.formats.fsdp_stack import ON_HOST, eager, fsdp_section
from predictor.formats.interpolation import filled
from predictor.formats.known_keys import known_keys, rest
from predictor.formats.torchtune.models import model_section

KEYS = "torchtune"
SECTIONS = ("model", "tokenizer", "dataset", "optimizer", "loss", "fsdp")
DTYPES = {"bf16": "bf16", "fp16": "fp16", "fp32": "fp32"}
# Adam's states per parameter, in bytes, where they are not in the weights' precision; -1: as those.
# Source: bitsandbytes/optim/adamw.py (states of 16-bit weights are in fp32 or 8 bits), torchao low_bit_optim.
OPTIMIZERS = {
    "torch.optim.AdamW": -1,
    "torch.optim.Adam": -1,
    "bitsandbytes.optim.AdamW": 8,
    "bitsandbytes.optim.AdamW8bit": 2,
    "bitsandbytes.optim.PagedAdamW": 8,
    "bitsandbytes.optim.PagedAdamW8bit": 2,
    "torchao.prototype.low_bit_optim.AdamW8bit": 2,
    "torchao.prototype.low_bit_optim.AdamW4bit": 1,
    "torchao.prototype.low_bit_optim.AdamWFp8": 2,
}
PAIRWISE = ("DPOLoss", "RSOLoss")  # of answers, beside a reference
OTHER_LOSSES = {
    "PPOLoss": "a step of PPO generates text as well, which is not modelled",
    "GRPO": "a step of GRPO generates text as well, which is not modelled",
}


def read(path: Path, num_gpus: int | None = None) -> Read:
    """Read a configuration.

    Args:
        path: the YAML file.
        num_gpus: GPUs of the run, which the file does not say.

    Raises:
        ConfigError: it is of no training, or something changes the cost in a way that is not modelled; the message has
            a line for each problem.
    """
    problems, notes = Problems(), list[str]()
    content = filled(load_foreign(path.read_text(encoding="utf-8")), path.name)
    fields = Fields(content, path.name, problems=problems.lines)
    if "batch_size" not in content or "optimizer" not in content:
        raise ConfigError(
            f"{path.name} is of no training: it has no batch_size or no optimizer; read a finetune recipe's"
        )
    sections = {name: fields.section(name) for name in SECTIONS if isinstance(content.get(name), dict)}
    nothing = dict[str, Any]
    unsaid: dict[str, str] = {}
    model, lora = problems.part((nothing(), nothing()), model_section, sections.get("model", Fields({}, path.name)))
    if not model:  # what it says is one problem, not one for each key
        sections.pop("model", None)
    precision = DTYPES[fields.text("dtype", "fp32", DTYPES)]
    training = {
        "micro_batch_size": fields.whole("batch_size"),
        "num_micro_batches": fields.whole("gradient_accumulation_steps", 1),
        **eager(precision, True, _compiles(fields, notes)),
        **problems.part(nothing(), _checkpointing, fields),
        **({"offload_activations": True} if fields.switch("enable_activation_offloading") else {}),
        **problems.part(nothing(), _optimizer, sections.get("optimizer", Fields({}, path.name)), notes),
        **problems.part(nothing(), _float8, fields),
        **({"lora": lora} if lora else {}),
    }
    parallelism = problems.part(nothing(), _layout, fields, precision, num_gpus, unsaid)
    holders = (fields, "fsdp_cpu_offload"), (sections.get("fsdp", fields), "cpu_offload")
    offloads = [holder.switch(key) for holder, key in holders]
    if any(offloads) and parallelism.get("zero_stage") == 3:
        training |= ON_HOST
    loss = sections["loss"].text("_component_", "") if "loss" in sections else ""
    if loss.endswith(PAIRWISE):  # recipes/lora_dpo_distributed.py, full_dpo_distributed.py: both answers in one batch
        training["micro_batch_size"] *= 2
        training["reference_model"] = "adapters_off" if lora else "separate"
        notes.append(f"{path.name}: a sample is two sequences, the chosen and the rejected answer")
    model |= _samples(fields, sections, notes, unsaid)
    _refuse_losses(sections, problems)
    problems.lines += _of_other_recipes(fields)
    notes += rest(known_keys(KEYS), "torchtune", [fields, *sections.values()], SECTIONS)
    problems.check()
    return Read({"model": model, "parallelism": parallelism, "training": training}, tuple(notes), unsaid=unsaid)


def _samples(fields: Fields, sections: dict[str, Fields], notes: list[str], unsaid: dict[str, str]) -> dict[str, Any]:
    """Return the key of a sample's length: packed samples are as long as the tokenizer's limit, others at most."""
    tokenizer, dataset = sections.get("tokenizer"), sections.get("dataset")
    length = None if tokenizer is None else tokenizer.optional_whole("max_seq_len")
    packed = dataset is not None and dataset.switch("packed")
    if packed:
        notes.append(f"{fields.where}: samples are packed; attention is predicted over whole ones: set document_tokens")
    elif length is not None:
        notes.append(
            f"{fields.where}: samples are predicted as long as tokenizer.max_seq_len; set training.mean_sequence_length"
        )
    if length is not None:
        return {"sequence_length": length}
    unsaid["model.sequence_length"] = (
        f"{fields.where}: samples are as long as those of the data (tokenizer.max_seq_len)"
    )
    return {}


def _compiles(fields: Fields, notes: list[str]) -> bool:
    """Return whether the model is compiled; since 0.6 compile may be a mapping of parts."""
    value = fields.get("compile")
    if isinstance(value, dict):
        return value.get("model") is True
    if value not in (None, True, False):
        fields.broken(fields.error("compile", "expected true or false"))
    return value is True


def _checkpointing(fields: Fields) -> dict[str, Any]:
    """Return the keys of ``training`` on recomputation: every layer, every so many, or by operator.

    Source: torchtune/training/activations.py; torchtune/training/_activation_offloading.py.
    """
    checkpoints = fields.switch("enable_activation_checkpointing")
    mode, option = fields.text("ac_mode", "full", ("full", "selective", "None")), fields.get("ac_option")
    if fields.switch("enable_activation_offloading") and not checkpoints:
        rule = "torchtune refuses it without enable_activation_checkpointing; set that to true"
        fields.broken(fields.error("enable_activation_offloading", rule))
    if mode == "selective":
        if option == "op":
            return {"recompute": "per_op", "recompute_stops_early": True}
        if not isinstance(option, int) or option < 1:
            raise fields.error("ac_option", "expected op, or a number such as 2 for every second layer")
        return {"recompute": "full", "recompute_every": option, "recompute_stops_early": True}
    if not checkpoints:
        return {"recompute": "none"}
    return {"recompute": "full", "recompute_stops_early": True}


def _optimizer(section: Fields, notes: list[str]) -> dict[str, Any]:
    """Return the key of the optimizer's states.

    Raises:
        ConfigError: it is no Adam.
    """
    name = section.text("_component_", "")
    if name not in OPTIMIZERS:
        raise section.error("_component_", f"only Adam is modelled: {', '.join(OPTIMIZERS)}")
    if OPTIMIZERS[name] < 0:
        return {}
    notes.append(f"{section.where}: {name.rpartition('.')[2]}: its states count in the memory; its kernels as AdamW's")
    return {"optimizer_state_bytes": OPTIMIZERS[name]}


def _float8(fields: Fields) -> dict[str, Any]:
    """Return the key of products in eight bits (0.7: enable_fp8_training)."""
    if not fields.switch("enable_fp8_training"):
        return {}
    recipe = fields.text("fp8_recipe_name", "tensorwise", ("tensorwise", "rowwise"))
    return {"gemm_recipe": f"fp8_{recipe}"}


def _layout(fields: Fields, precision: str, num_gpus: int | None, unsaid: dict[str, str]) -> dict[str, Any]:
    """Return the section ``parallelism``: FSDP2 over all replicas, tensor-parallel ranks inside.

    Raises:
        ConfigError: the degrees do not make the GPUs.
    """
    tensor = fields.whole("tensor_parallel_dim", 1)
    context = fields.whole("context_parallel_dim", 1)
    replicate = fields.whole("data_parallel_replicate_dim", 1)
    shard = fields.whole("data_parallel_shard_dim", -1, least=-1)
    keys: dict[str, Any] = {"tensor_parallel_size": tensor, "context_parallel_size": context}
    dp = replicate * shard if shard > 0 else 0
    if num_gpus is not None:
        if num_gpus % (tensor * context):
            raise fields.error("tensor_parallel_dim", f"it must divide the {num_gpus} GPUs of the run")
        dp = num_gpus // (tensor * context)
    if dp == 1:
        return keys | {"data_parallel_size": 1, "zero_stage": 0}
    keys |= fsdp_section(precision, True, fields.switch("fsdp_reshard_after_forward", True))
    if dp == 0:
        unsaid["parallelism.data_parallel_size"] = f"{fields.where}: tune run --nproc_per_node says the GPUs"
        return keys
    return keys | {"data_parallel_size": dp} | ({"zero_group_size": dp // replicate} if replicate > 1 else {})


def _refuse_losses(sections: dict[str, Fields], problems: Problems) -> None:
    loss = sections.get("loss")
    name = "" if loss is None else loss.text("_component_", "")
    why = next((reason for word, reason in OTHER_LOSSES.items() if word in name), None)
    if loss is not None and why is not None:
        problems.lines.append(str(loss.error("_component_", why)))


def _of_other_recipes(fields: Fields) -> list[str]:
    """Return a problem for each part of a recipe beside a plain training."""
    found = []
    for key, why in (
        ("teacher_model", "distillation runs a second model, which is not modelled"),
        ("reward_and_value_model", "a step of PPO generates text as well, which is not modelled"),
        ("quantizer", "quantisation-aware training is not modelled; set it to null"),
    ):
        if fields.get(key) is not None:
            found.append(f"{fields.where}: {key} is given; {why}")
    return found
