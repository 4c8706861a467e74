"""A recipe of Megatron-Bridge as arguments of Megatron-LM, whose configuration classes it shares.

Source of names and defaults: NVIDIA-NeMo/Megatron-Bridge, src/megatron/bridge/training/config.py, mixed_precision.py,
comm_overlap.py and models/gpt_provider.py.
"""

from __future__ import annotations

import re
from typing import Any

from predictor.formats.fields import Fields
from predictor.formats.known_keys import KnownKeys, known_keys, rest
from predictor.formats.megatron.offloading import as_sections_say
from predictor.formats.megatron.options import Options
from predictor.formats.python_source.values import Unknown

KEYS = "megatron_bridge"
# Of sections whose other keys change no cost.
ONLY = {"train": ("micro_batch_size", "global_batch_size"), "dist": ("use_tp_pp_dp_mapping",)}
# Keys that only add a note, where it does not matter that their value cannot be told.
OF_NOTES = ("model.cuda_graph_modules", "model.cuda_graph_scope")
SECTIONS = ("model", "train", "ddp", "optimizer", "mixed_precision", "comm_overlap", "dist")
RENAMED = {
    "comm_overlap.bucket_size": "ddp-bucket-size",
    "comm_overlap.overlap_moe_expert_parallel_comm": "overlap-moe-expert-parallel-comm",
    "ddp.bucket_size": "ddp-bucket-size",
    "mixed_precision.fp4": "fp4-format",
    "mixed_precision.fp8": "fp8-format",
    "model.activation_func": "activation-func",
    "model.gated_linear_unit": "gated-linear-unit",
    "model.microbatch_group_size_per_vp_stage": "microbatch-group-size-per-virtual-pipeline-stage",
    "model.num_layers_in_first_pipeline_stage": "decoder-first-pipeline-num-layers",
    "model.num_layers_in_last_pipeline_stage": "decoder-last-pipeline-num-layers",
    "model.num_moe_experts": "num-experts",
    "model.virtual_pipeline_model_parallel_size": "num-virtual-stages-per-pipeline-rank",
}
# Switches that are on unless a recipe turns them off, with the arguments that do so.
ON = {
    "mixed_precision.fp8_wgrad": ("no-fp8-wgrad",),
    "model.add_bias_linear": ("disable-bias-linear",),
    "model.apply_rope_fusion": ("no-rope-fusion",),
    "model.bias_activation_fusion": ("no-bias-swiglu-fusion", "no-bias-gelu-fusion"),
    "model.bias_dropout_fusion": ("no-bias-dropout-fusion",),
    "model.gradient_accumulation_fusion": ("no-gradient-accumulation-fusion",),
    "model.masked_softmax_fusion": ("no-masked-softmax-fusion",),
    "model.share_embeddings_and_output_weights": ("untie-embeddings-and-output-weights",),
}
# Keys that are read without being arguments of Megatron-LM.
OF_ITS_OWN = (
    "ddp.grad_reduce_in_fp32",
    "mixed_precision.bf16",
    "mixed_precision.fp16",
    "mixed_precision.grad_reduce_in_fp32",
    "model.activation_func",
    "model.gated_linear_unit",
)
DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "half": "fp16"}
# mixed_precision.py: what a precision by name sets, on top of bf16.
TENSORWISE = {"fp8": "hybrid", "fp8_recipe": "tensorwise", "fp8_param_gather": True, "first_last_layers_bf16": True}
ENDS = {"num_layers_at_start_in_bf16": 1, "num_layers_at_end_in_bf16": 1}
PRECISIONS: dict[str, dict[str, Any]] = {
    "mixed": {},
    "with_fp8_delayed_scaling_mixed": {"fp8": "hybrid", "fp8_recipe": "delayed", "fp8_param_gather": True},
    "with_fp8_current_scaling_mixed": TENSORWISE | ENDS,
    "with_fp8_subchannel_scaling_mixed": {"fp8": "hybrid", "fp8_recipe": "blockwise"},
    "with_mxfp8_mixed": {"fp8": "e4m3", "fp8_recipe": "mxfp8", "fp8_param_gather": True},
    "with_nvfp4_mixed": {"fp4": "e2m1", "fp4_recipe": "nvfp4"},
}


LAYERS_AT_ENDS = {"nemotron_h": 2, "nanov2": 2}  # in bf16, of the precisions of these models


def precision(written: Any) -> dict[str, Any] | None:
    """Return the section ``mixed_precision`` of a precision by name, such as bf16_mixed; None for an unknown name."""
    if not isinstance(written, str):
        return None
    name = written.replace("-", "_")
    ends = next((count for prefix, count in LAYERS_AT_ENDS.items() if name.startswith(prefix)), None)
    name = re.sub(rf"^({'|'.join(LAYERS_AT_ENDS)})_", "", name)
    kind, _, rest = name.partition("_")
    if kind not in ("bf16", "fp16") or rest not in PRECISIONS:
        return None
    at_ends = {} if ends is None else dict.fromkeys(ENDS, ends)
    return {kind: True, "grad_reduce_in_fp32": kind == "bf16", **PRECISIONS[rest], **at_ends}


def to_options(sections: dict[str, dict[str, Any]], where: str, problems: list[str], notes: list[str]) -> Options:
    """Return a recipe's settings as arguments.

    Args:
        sections: of the recipe; a value that cannot be told is ``Unknown``.
        where: the file and the recipe, for messages.
        problems: record of what is wrong.
        notes: notes so far.
    """
    options = Options({}, where, problems=problems)
    known = known_keys(KEYS)
    left: dict[str, Any] = {}
    for section in SECTIONS:
        for key, value in sections.get(section, {}).items():
            name = f"{section}.{key}"
            if known.is_irrelevant(name) or key not in ONLY.get(section, (key,)):
                continue
            if isinstance(value, Unknown) and name == "model.cuda_graph_impl":
                _add(options, name, "full_iteration")  # which of its kinds is all that cannot be told
            elif isinstance(value, Unknown) and name in OF_NOTES:
                notes.append(f"{where}: {name} cannot be told; all kernels are predicted to be in CUDA graphs")
            elif name in known.noted or name in known.refused or not _is_argument(name, known_keys("megatron")):
                left[name] = None if isinstance(value, Unknown) else value
            elif isinstance(value, Unknown):
                problems.append(f"{where}: {name} cannot be read: {value.why}")
            else:
                _add(options, name, value)
    notes += rest(known, "Megatron-Bridge", [Fields(left, where, problems=problems)])
    _derive(options, sections)
    return options


def _is_argument(name: str, arguments: KnownKeys) -> bool:
    """Return whether a key is an argument of Megatron-LM, whatever its fate."""
    key = RENAMED.get(name, name.partition(".")[2]).replace("-", "_")
    fates = (arguments.read, arguments.noted, arguments.refused)
    return name in ON or name in OF_ITS_OWN or arguments.is_irrelevant(key) or any(key in fate for fate in fates)


def _add(options: Options, name: str, value: Any) -> None:
    """Add an argument, with how the recipe calls it."""
    if name in ON:
        for key in ON[name] if value is False else ():
            options.values = {**options.values, key: True}
            options.names[key] = name
        return
    key = RENAMED.get(name, name.partition(".")[2].replace("_", "-"))
    if key == "pipeline-model-parallel-layout" and isinstance(value, list | tuple):
        value = layout_text(value)
    plain = _plain(value)
    if plain is None or (plain is False and key in options.values):
        return
    options.values = {**options.values, key: plain}
    options.names[key] = name


def _plain(value: Any) -> Any:
    """Return a value as an argument has it; None for nothing, and for objects, which no argument is."""
    if isinstance(value, list | tuple):
        return " ".join(str(item) for item in value) or None
    if isinstance(value, dict):
        value = value.get("_target_")
    if isinstance(value, str):
        last = value.rpartition(".")[2] if value.startswith(("torch.", "megatron.", "AttnBackend")) else value
        return DTYPES.get(last, last)
    return value


def layout_text(stages: list[Any] | tuple[Any, ...]) -> str:
    """Return a list of the layers of every stage as the string that --pipeline-model-parallel-layout takes."""
    letters = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}
    lists = [stage if isinstance(stage, list | tuple) else [stage] for stage in stages]
    return "|".join("".join(letters.get(str(layer), str(layer)) for layer in stage) for stage in lists)


def _derive(options: Options, sections: dict[str, dict[str, Any]]) -> None:
    """Add what Megatron-Bridge derives from several sections when a run starts."""
    values = as_sections_say(options.values)
    mixed, overlap = sections.get("mixed_precision", {}), sections.get("comm_overlap", {})
    reduces_in_fp32 = mixed.get("grad_reduce_in_fp32", sections.get("ddp", {}).get("grad_reduce_in_fp32", False))
    values.pop("grad-reduce-in-fp32", None)
    # The reduction's precision is said here, whatever the optimizer makes of the sums.
    values["accumulate-allreduce-grads-in-fp32" if reduces_in_fp32 is True else "grad-reduce-in-bf16"] = True
    values.pop("main-grads-dtype", None)
    if mixed.get("fp8") and "fp8-recipe" not in values:
        values["fp8-recipe"] = "tensorwise"
    for edge in ("start", "end"):
        values.setdefault(f"num-layers-at-{edge}-in-bf16", 0)
    splits = int(values.get("tensor-model-parallel-size") or 1) > 1 and values.get("sequence-parallel") is True
    if values.get("tp-comm-overlap") and not splits:
        values.pop("tp-comm-overlap")
    if overlap and values.get("use-distributed-optimizer"):
        for key in ("overlap_grad_reduce", "overlap_param_gather"):
            values[key.replace("_", "-")] = overlap.get(key) is not False
        values.setdefault("ddp-bucket-size", 128 * 1024 * 1024)
    values.setdefault("transformer-impl", "transformer_engine")
    values.setdefault("cross-entropy-loss-fusion", True)
    values.setdefault("cross-entropy-fusion-impl", "te")  # its providers' own, past the check of Megatron-LM's script
    options.values = values
