"""Fine-tuning on Megatron-core: ms-swift's ``megatron sft`` and ``megatron pt``, whose arguments are Megatron-LM's.

Source of names and defaults: modelscope/ms-swift, swift/megatron/arguments (megatron_args.py, sft_args.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from predictor.core.schema.problems import Problems
from predictor.core.schema.read import Read
from predictor.formats.fields import Fields
from predictor.formats.hub_section import LINEARS, hub_section
from predictor.formats.known_keys import known_keys, rest
from predictor.formats.megatron_bridge.options import ON
from predictor.formats.rl.actor import asked, megatron_update
from predictor.formats.trainer.layout import Launch

FORMAT = "ms-swift command"
MODELS = ("model", "load", "mcore_model")  # the first that is given names the model
TRAIN = ("micro_batch_size", "global_batch_size")
DDP = ("use_distributed_optimizer", "overlap_grad_reduce", "overlap_param_gather", "use_megatron_fsdp")
OPTIMIZER = (
    *("optimizer_cpu_offload", "optimizer_offload_fraction", "overlap_cpu_optimizer_d2h_h2d"),
    *("use_precision_aware_optimizer", "main_grads_dtype", "main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype"),
)
DEFAULTS = {
    "micro_batch_size": 1,
    "global_batch_size": 16,
    "recompute_granularity": "selective",
    "use_distributed_optimizer": True,
    "cross_entropy_loss_fusion": True,
    "apply_rope_fusion": False,
}
SWITCHES = {name.partition(".")[2] for name in ON if name.startswith("model.")}
JOINED = ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")  # all linear layers, as Megatron-core has them
# What the reader uses beside Megatron-LM's arguments, and what changes no cost of a step there.
OF_SWIFT = {*MODELS, "max_length", "tuner_type", "train_type", "lora_rank", "lora_dropout", "target_modules", "packing"}
OF_SWIFT |= {"padding_free", "torch_dtype", "bf16", "fp16", "recompute_granularity"}


def from_mapping(
    content: Mapping[str, Any],
    where: str,
    launch: Launch,
    problems: Problems,
    prefix: str,
    tool: tuple[str, str] = ("ms-swift", "swift"),
) -> Read:
    """Return the configuration that arguments of ``megatron sft`` stand for (``tool``: its name and its key table)."""
    values = {key: value for key, value in content.items() if value is not None}
    fields = Fields({**DEFAULTS, **values}, where, prefix, problems=problems.lines)
    notes, unsaid = list(launch.notes), dict[str, str]()
    key = next((key for key in MODELS if fields.has(key)), MODELS[0])
    model = hub_section(fields.get(key), f"{prefix}{key}", where, unsaid, notes)
    model["sequence_length"] = fields.whole("max_length", 1)
    if not fields.has("max_length"):
        unsaid["model.sequence_length"] = f"{where}: it says no {prefix}max_length"
    sections, lora = _sections(fields), _adapters(fields)
    if fields.get("packing"):
        notes.append(
            f"{where}: samples are packed; attention is predicted over whole sequences: set training.document_tokens "
            "to the mean of a document"
        )
    fields.used |= OF_SWIFT
    gpus = launch.num_gpus
    update = megatron_update(sections, model, where, problems, notes, (gpus, gpus is not None))
    irrelevant = known_keys("megatron").is_irrelevant
    plain = {key: value for key, value in fields.values.items() if not irrelevant(key)}
    said = rest(known_keys(tool[1]), tool[0], [Fields(plain, where, prefix, fields.used, problems.lines)])
    problems.check()
    content = {**update.content, "training": {**update.content["training"], **lora}}
    notes = list(dict.fromkeys((*update.notes, *notes, *said)))
    return asked(replace(update, content=content, notes=tuple(notes)), unsaid)


def _sections(fields: Fields) -> dict[str, dict[str, Any]]:
    """Return Megatron-LM's arguments in the sections of Megatron-Bridge."""
    known = known_keys("megatron")
    of_model = {*known.read, *known.noted, *known.refused, *SWITCHES} - {*OF_SWIFT, *TRAIN, *DDP, *OPTIMIZER}
    parts = {"train": TRAIN, "ddp": DDP, "optimizer": OPTIMIZER, "model": sorted(of_model)}
    sections = {part: {name: fields.get(name) for name in names if fields.has(name)} for part, names in parts.items()}
    granularity = fields.text("recompute_granularity", "selective", ("selective", "full", "none"))
    sections["model"] |= {} if granularity == "none" else {"recompute_granularity": granularity}
    half = "fp16" if fields.get("fp16") or str(fields.get("torch_dtype")) == "float16" else "bf16"
    sections["mixed_precision"] = {half: True, "grad_reduce_in_fp32": half == "bf16"}
    sections["ddp"]["grad_reduce_in_fp32"] = True
    return sections


def _adapters(fields: Fields) -> dict[str, Any]:
    """Return the key of ``training`` on adapters, which stand beside Megatron-core's joined projections."""
    kind = str(fields.get("tuner_type") or fields.get("train_type") or "full")
    if kind == "full":
        return {}
    if kind != "lora":
        fields.broken(fields.error("tuner_type", "only lora and full are modelled; write one of them"))
    written = fields.get("target_modules") or "all-linear"
    named = written.split() if isinstance(written, str) else [str(name) for name in written]
    named = list(JOINED) if "all-linear" in named else named
    if strange := [name for name in named if name not in LINEARS]:
        fields.broken(
            fields.error("target_modules", f"{', '.join(strange)}: expected {', '.join(JOINED)} or all-linear")
        )
    found = {LINEARS[name] for name in named if name in LINEARS}
    keys: dict[str, Any] = {
        "rank": fields.whole("lora_rank", 8),
        "targets": [it for it in dict.fromkeys(LINEARS.values()) if it in found],
    }
    dropout = fields.real("lora_dropout", 0.05)
    return {"lora": keys | ({"dropout": dropout} if dropout else {})}
