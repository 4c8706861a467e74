"""Read a training YAML of LLM Foundry: model (MPT, or one of the Hugging Face hub), batch, precision and FSDP.

Source of names and defaults: mosaicml/llm-foundry, llmfoundry/models/mpt/configuration_mpt.py and
models/utils/config_defaults.py; mosaicml/composer, composer/utils/parallelism.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from predictor.core.base.errors import ConfigError
from predictor.core.base.read_yaml import read_mapping
from predictor.core.schema.problems import Problems
from predictor.core.schema.read import Read
from predictor.formats.fields import Fields
from predictor.formats.fsdp_stack import ON_HOST, SHARDING
from predictor.formats.hub_section import hub_section
from predictor.formats.interpolation import filled
from predictor.formats.known_keys import known_keys, rest
from predictor.formats.llm_foundry.model import Named, mpt
from predictor.formats.shell.words import is_unknown

FAMILY = "llm-foundry"
KEYS = "llm_foundry"
MPT = ("mpt_causal_lm", "mosaic_gpt")
HUB = ("hf_causal_lm",)
MODELS = frozenset({*MPT, *HUB, "hf_t5", "hf_prefix_lm", "hf_bert", "mosaic_bert"})
BATCH = ("global_train_batch_size", "device_train_microbatch_size", "device_train_batch_size")
ADAMS = ("decoupled_adamw", "adamw", "adam")
PRECISIONS = {"amp_bf16": "bf16", "bf16": "bf16", "amp_fp16": "fp16", "fp16": "fp16", "amp_fp8": "bf16", "fp32": "fp32"}
# Adapters by the linear layers that they stand beside; those of queries, keys and values come together.
TARGETS = {
    "Wqkv": "qkv",
    "q_proj": "q",
    "k_proj": "k",
    "v_proj": "v",
    "out_proj": "attention_output",
    "o_proj": "attention_output",
    "gate_proj": "gate",
    "up_proj": "up",
    "down_proj": "ffn_down",
}


def inside(content: dict[str, Any]) -> dict[str, Any]:
    """Return the training configuration of a file, which a job of MosaicML's platform has under ``parameters``."""
    held = content.get("parameters")
    return held if isinstance(held, dict) and "model" in held else content


def read(path: Path) -> Read:
    """Read a training configuration of LLM Foundry.

    Raises:
        ConfigError: the model is no decoder, or something changes the cost in a way that is not modelled; the message
            has a line for each problem.
    """
    problems = Problems()
    content = read_mapping(path)
    fields = Named(filled(inside(content), path.name), path.name, problems=problems.lines)
    model, kind = fields.part("model"), str((fields.values.get("model") or {}).get("name"))
    if kind not in (*MPT, *HUB):
        raise ConfigError(f"{path.name}: model.name is {kind}; only decoders are read: {', '.join((*MPT, *HUB))}")
    notes: list[str] = []
    gpus = (content.get("compute") or {}).get("gpus") if inside(content) is not content else None
    unsaid = {} if gpus else {"parallelism.data_parallel_size": f"{path.name} says no number of GPUs"}
    nothing = dict[str, Any]
    length = fields.whole("max_seq_len", model.values.get("max_seq_len", 2048))
    found = (
        problems.part(nothing(), mpt, model) if kind in MPT else problems.part(nothing(), _hub, model, unsaid, notes)
    )
    training = problems.part(nothing(), _batch, fields, unsaid) | problems.part(nothing(), _precision, fields)
    training |= problems.part(nothing(), _adapters, model)
    parallelism = problems.part(nothing(), _fsdp, fields.part("fsdp_config"), training)
    _optimizer(fields.part("optimizer"))
    _packing(fields, notes)
    holders = (fields, model, fields.part("fsdp_config"))
    notes += rest(known_keys(KEYS), "LLM Foundry", holders, [key for holder in holders for key in holder.open()])
    parallelism |= {"data_parallel_size": gpus} if gpus else {}
    problems.check()
    sections = {
        "model": {"sequence_length": length, **found},
        "parallelism": parallelism,
        "training": training | {"framework": FAMILY},
    }
    return Read(sections, tuple(notes), unsaid=unsaid)


def _hub(model: Fields, unsaid: dict[str, str], notes: list[str]) -> dict[str, Any]:
    """Return the keys of a model of the hub, or none where its config.json has to say them."""
    name = model.text("pretrained_model_name_or_path", "")
    if is_unknown(name):
        raise model.error("pretrained_model_name_or_path", "write the name of the model")
    overrides = model.get("config_overrides") or {}
    changed = sorted(key for key in overrides if key not in ("torch_dtype", "attn_config", "use_cache"))
    if changed:
        model.broken(model.error("config_overrides", f"{', '.join(changed)}: write them into the model's config.json"))
    model.get("use_flash_attention_2")
    return hub_section(name, "pretrained_model_name_or_path", model.where, unsaid, notes) | {"loss": "torch"}


def _batch(fields: Fields, unsaid: dict[str, str]) -> dict[str, Any]:
    """Return the batch; « auto » finds the largest micro-batch that fits, which only a run tells."""
    if fields.values.get(BATCH[1]) == "auto":
        fields.used.add(BATCH[1])
        unsaid["training.micro_batch_size"] = f"{fields.where}: {BATCH[1]} is auto, which only a run tells"
        micro = None
    else:
        micro = fields.optional_whole(BATCH[1])
    total, each = fields.optional_whole(BATCH[0]), fields.optional_whole(BATCH[2])
    if total is None and each is None:
        fields.broken(ConfigError(f"{fields.where}: {BATCH[0]} is missing; it is required"))
    keys: dict[str, Any] = {} if micro is None else {"micro_batch_size": micro}
    if total is not None:
        return keys | {"global_batch_size": total}
    if micro is not None and each is not None:
        keys["num_micro_batches"] = max(1, each // micro)
    return keys


def _precision(fields: Fields) -> dict[str, Any]:
    name = fields.text("precision", "amp_bf16", PRECISIONS)
    return {"precision": PRECISIONS[name]} | ({"gemm_recipe": "fp8_delayed"} if name == "amp_fp8" else {})


def _adapters(model: Fields) -> dict[str, Any]:
    """Return the key of ``training`` on adapters.

    Raises:
        ConfigError: they are not LoRA, or stand beside a part of a layer that is modelled as one.
    """
    held = model.get("peft_config")
    if held is None:
        return {}
    peft = Fields(held, model.where, "model.peft_config.", problems=model.problems)
    if peft.text("peft_type", "LORA").upper() != "LORA":
        raise peft.error("peft_type", "only LoRA is modelled")
    named = peft.get("target_modules")
    if not isinstance(named, list) or not named or not set(named) <= TARGETS.keys():
        raise peft.error("target_modules", f"expected a list of {', '.join(TARGETS)}")
    targets = [target for name, target in TARGETS.items() if name in named]
    dropout = peft.real("lora_dropout", 0.0)
    return {"lora": {"rank": peft.whole("r", 8), "targets": targets} | ({"dropout": dropout} if dropout else {})}


def _fsdp(section: Fields, training: dict[str, Any]) -> dict[str, Any]:
    """Return the section ``parallelism``; without fsdp_config gradients are reduced as DDP does.

    Raises:
        ConfigError: the strategy is not known.
    """
    if not section.values:
        return {"zero_stage": 0, "gradient_reduction": "all_reduce", "overlap_gradient_reduction": True}
    name = section.text("sharding_strategy", "FULL_SHARD", SHARDING)
    stage, reshards = SHARDING[name]
    if section.switch("activation_cpu_offload"):  # torch's save_on_cpu, which waits for every copy
        training |= {"offload_activations": True, "overlap_activation_offload": False}
    if section.switch("cpu_offload") and stage == 3:
        training |= ON_HOST
    is_reentrant = section.switch("activation_checkpointing_reentrant", True)
    if section.switch("activation_checkpointing"):
        training |= {"recompute": "full"} | ({} if is_reentrant else {"recompute_stops_early": True})
    mixed = section.get("mixed_precision") or "DEFAULT"
    if mixed not in ("PURE", "DEFAULT", "FULL"):
        section.broken(section.error("mixed_precision", "expected PURE, DEFAULT or FULL"))
    keys: dict[str, Any] = {"zero_stage": stage, "overlap_gradient_reduction": True}
    keys["fp32_gradients"] = mixed != "PURE"
    if stage == 0:
        return keys | {"gradient_reduction": "all_reduce"}
    keys |= {"gradient_reduction": "reduce_scatter", "overlap_parameter_gather": True, "fp32_parameters": True}
    if not section.switch("reshard_after_forward", reshards):
        keys["reshard_after_forward"] = False
    mesh = section.get("device_mesh")
    if isinstance(mesh, list) and len(mesh) == 2 and all(isinstance(size, int) for size in mesh):
        keys["zero_group_size"] = mesh[1]
    elif "HYBRID" in name:
        section.broken(section.error("sharding_strategy", "write device_mesh, whose second size is that of a group"))
    return keys


def _optimizer(section: Fields) -> None:
    name = section.text("name", "decoupled_adamw")
    if name not in ADAMS:
        section.broken(section.error("name", f"only Adam is modelled: {', '.join(ADAMS)}"))


def _packing(fields: Named, notes: list[str]) -> None:
    loader = fields.part("train_loader")
    dataset = loader.values.get("dataset") or {}
    if isinstance(dataset, dict) and dataset.get("packing_ratio") not in (None, 1, 1.0):
        notes.append(
            f"{fields.where}: samples are packed; attention is predicted over whole sequences: set document_tokens"
        )
    elif loader.values.get("name") == "finetuning":
        notes.append(f"{fields.where}: samples are predicted as long as max_seq_len; set training.mean_sequence_length")
