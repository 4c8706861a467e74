"""Read a configuration of InternEvo: Python that assigns dicts (model, parallel, data, hybrid_zero_optimizer).

Source of names and defaults: InternLM/InternEvo 0.5.2, configs/7B_sft.py, internlm/initialize/launch.py,
internlm/model/modeling_internlm.py, modeling_internlm2.py and modules/mlp.py,
internlm/solver/optimizer/hybrid_zero_optim.py (buckets in elements).
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

from predictor.core.base.errors import ConfigError
from predictor.core.schema.problems import Problems
from predictor.core.schema.read import Read
from predictor.core.workload.frameworks import INTERNEVO
from predictor.formats.fields import Fields
from predictor.formats.hub_section import replicas
from predictor.formats.known_keys import known_keys, rest
from predictor.formats.python_source.calls import call, load_module
from predictor.formats.python_source.expressions import evaluate
from predictor.formats.python_source.scope import Scope, Work, look_up
from predictor.formats.python_source.values import Record, Unknown

FAMILY = "internevo"
KEYS = "internevo"
SECTIONS = ("model", "parallel", "data", "hybrid_zero_optimizer", "moe")
# What layers of a model_type have beside the usual ones, where its own keys do not say it.
BIASED = {"INTERNLM": "attention", "INTERNLM_MoE": "attention"}
KNOWN_TYPES = (
    "GEMMA",
    "INTERNLM",
    "INTERNLM2",
    "INTERNLM2_PUBLIC",
    "INTERNLM3",
    "INTERNLM_MoE",
    "LLAMA",
    "LLAMA2",
    "MIXTRAL",
    "MIXTRALMOE",
)
QKV_BIASED = ("QWEN2", "QWEN2MOE")
CAPPED = ("GShard", "MegaBlock")  # experts that drop tokens beyond their capacity
MODES = {"1F1B": "1f1b", "1f1b": "1f1b", "zbh1": "zero_bubble_h1", "ZBH1": "zero_bubble_h1", "zbv": "zbv", "ZBV": "zbv"}
DTYPES = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "tf32": "fp32"}


def read(path: Path, num_gpus: int | None = None) -> Read:
    """Read a configuration.

    Args:
        path: the Python file.
        num_gpus: GPUs of the run, which the file does not say.

    Raises:
        ConfigError: something changes the cost in a way that is not modelled; the message has a line for each problem.
    """
    problems, notes, unsaid = Problems(), list[str](), dict[str, str]()
    found = _assigned(path)
    sections = {
        name: Fields(found[name], path.name, f"{name}.", problems=problems.lines) for name in SECTIONS if name in found
    }
    missing = [name for name in ("model", "parallel", "data") if name not in sections]
    if missing:
        raise ConfigError(f"{path.name}: {missing[0]} is missing, or not a dict that the file itself says")
    nothing = dict[str, Any]
    kind = found.get("model_type", "INTERNLM")
    model = problems.part(nothing(), _model, sections, kind)
    layout, data = sections["parallel"], sections["data"]
    parallelism = problems.part(nothing(), _layout, layout, sections["model"], num_gpus, unsaid)
    parallelism |= problems.part(nothing(), _reduction, sections, parallelism)
    training = {
        "micro_batch_size": data.whole("micro_bsz"),
        "num_micro_batches": data.whole("micro_num"),
        "framework": FAMILY,
        **INTERNEVO.section("training"),
        **problems.part(nothing(), _recompute, sections["model"], model, parallelism),
    }
    training["precision"] = _precision(sections["model"])
    model["sequence_length"] = data.whole("seq_len")
    notes.append(f"{path.name}: samples are packed; attention is predicted over seq_len: set document_tokens")
    holders = [section for name, section in sections.items() if name != "model" or "num_layers" in model]
    read_elsewhere = ("parallel.tensor", "parallel.zero1", "parallel.pipeline", "parallel.weight")
    notes += rest(known_keys(KEYS), "InternEvo", holders, read_elsewhere)
    problems.check()
    return Read({"model": model, "parallelism": parallelism, "training": training}, tuple(notes), unsaid=unsaid)


def _assigned(path: Path) -> dict[str, Any]:
    """Return what the file assigns to the names of its sections; values that only a run tells are left out."""
    module = load_module(path)
    scope = Scope(module, Work(call, frozenset()))
    found: dict[str, Any] = {}
    for name in (*SECTIONS, "model_type"):
        if name in module.definitions:
            value = look_up(name, ast.Pass(), scope, evaluate)
            if isinstance(value, dict):
                found[name] = {key: item for key, item in value.items() if not isinstance(item, Unknown | Record)}
            elif isinstance(value, str):
                found[name] = value
    return found


def _model(sections: dict[str, Fields], kind: str) -> dict[str, Any]:
    """Return the section ``model`` without its sequence length.

    Raises:
        ConfigError: the type of model is not modelled.
    """
    section = sections["model"]
    if kind not in KNOWN_TYPES and kind not in QKV_BIASED:
        known = ", ".join((*KNOWN_TYPES, *QKV_BIASED))
        raise ConfigError(f"{section.where}: model_type is {kind!r}; its layers are not read; known: {known}")
    heads, hidden = section.whole("num_attention_heads"), section.whole("hidden_size")
    width = int(hidden * section.real("mlp_ratio", 4.0))
    section.text("norm_type", "rmsnorm", ("rmsnorm",))
    window = section.optional_whole("sliding_window") if section.switch("use_sliding_window") else None
    if window is not None:
        section.broken(section.error("sliding_window", "which layers have it is not read; write model.layer_types"))
    biases: bool | str = "qkv" if kind in QKV_BIASED else BIASED.get(kind, False)
    if kind.startswith("INTERNLM2") and not section.switch("no_bias", False):
        biases = True
    section.get("no_bias")
    if section.has("qkv_bias"):  # models of 2024-07 and later say it by product
        of_output = section.switch("o_bias")
        biases = ("attention" if of_output else "qkv") if section.switch("qkv_bias") else False
    keys: dict[str, Any] = {
        "num_layers": section.whole("num_layers"),
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": section.whole("num_kv_attention_heads", heads),
        "ffn_hidden_size": -(-width // 256) * 256,
        "vocab_size": section.whole("vocab_size"),
        "activation": "geglu" if kind == "GEMMA" else "swiglu",
        "rotary_fraction": 1.0,
        "biases": biases,
        "attention": "flash" if section.switch("use_flash_attn", True) else "unfused",
        **INTERNEVO.section("model"),
    }
    size = section.optional_whole("head_dim")
    keys |= {"head_dim": size} if size not in (None, hidden // heads) else {}
    experts = section.whole("num_experts", 1)
    if experts == 1:
        return keys
    moe = sections.get("moe", Fields({}, section.where))
    keys["moe"] = {
        "num_experts": experts,
        "experts_per_token": section.whole("top_k", moe.whole("top_k", 1)),
        "expert_ffn_hidden_size": keys["ffn_hidden_size"],
    }
    if section.text("moe_type", "GShard") in CAPPED and moe.switch("drop_tokens", True):
        keys["moe"]["capacity_factor"] = moe.real("capacity_factor", 1.0)
    if section.switch("moe_use_residual"):
        section.broken(section.error("moe_use_residual", "a residual FFN beside experts is not modelled"))
    if (shared := section.whole("num_shared_experts", 0, least=0)) > 0:
        keys["moe"]["shared_expert_ffn_hidden_size"] = shared * keys["ffn_hidden_size"]
    return keys


def _size(layout: Fields, key: str) -> tuple[int, dict[str, Any]]:
    """Return the size of a group, said as a number or as a dict with other keys."""
    value = layout.get(key)
    inner = value if isinstance(value, dict) else {} if value is None else {"size": value}
    size = inner.get("size", 1)
    if not isinstance(size, int):
        layout.broken(layout.error(key, "expected a number, or a dict with a size"))
        size = 1
    return size, inner


def _layout(layout: Fields, model: Fields, num_gpus: int | None, unsaid: dict[str, str]) -> dict[str, Any]:
    """Return the degrees and the sharding of the optimizer.

    Raises:
        ConfigError: a mode is not modelled, or the degrees do not make the GPUs.
    """
    tensor, of_tensor = _size(layout, "tensor")
    pipeline, of_pipeline = _size(layout, "pipeline")
    weight, of_weight = _size(layout, "weight")
    zero, of_zero = _size(layout, "zero1")
    chunks = model.whole("num_chunks", 1)
    mode = of_tensor.get("mode", "mtp")
    if mode == "isp" and tensor > 1:
        raise layout.error(
            "tensor", "isp, whose ranks share out a sample's tokens, is not modelled; mtp, msp and fsp are"
        )
    twice = layout.get("sequence_2D")
    if isinstance(twice, dict) and twice.get("enable"):
        raise layout.error("sequence_2D", "samples split twice are not modelled; set enable to False")
    if of_zero.get("fsdp") is True:
        raise layout.error("zero1", "torch's FSDP inside InternEvo is not modelled; set fsdp to False")
    name = of_pipeline.get("mode", "1f1b")
    if name not in MODES:
        raise layout.error("pipeline", f"modes that are modelled: {', '.join(MODES)}")
    keys: dict[str, Any] = {
        "tensor_parallel_size": tensor,
        "sequence_parallel": tensor > 1 and mode in ("msp", "fsp"),
        "pipeline_parallel_size": pipeline,
    }
    if pipeline > 1:
        keys["schedule"] = "interleaved_1f1b" if chunks > 1 and MODES[name] == "1f1b" else MODES[name]
        keys |= {"virtual_pipeline_parallel_size": chunks} if chunks > 1 else {}
    expert, of_expert = _size(layout, "expert")
    if _size(layout, "expert_weight")[0] > 1:
        raise layout.error("expert_weight", "experts whose weights are gathered are not modelled; set its size to 1")
    if mode == "isp" and weight > 1:  # weights of a layer are gathered from so many replicas, as FSDP does
        keys |= {"zero_stage": 3, "zero_group_size": weight, "gradient_reduction": "reduce_scatter"}
        keys["overlap_parameter_gather"] = of_weight.get("overlap") is True
    else:
        keys["zero_stage"] = 0 if zero == 1 else 1
        keys |= {"zero_group_size": zero} if zero > 1 else {}
    experts = model.values.get("num_experts", 1)
    if isinstance(experts, int) and experts > 1:
        most = experts if num_gpus is None else min(experts, num_gpus // (tensor * pipeline))
        expert = most if expert < 1 else expert  # all replicas, and not more than there are experts
        keys |= {"expert_parallel_size": expert} if expert > 1 else {}
        keys |= {"expert_tensor_parallel_size": 1} if tensor > 1 and of_expert.get("no_tp") is True else {}
    return keys | replicas(num_gpus, tensor * pipeline, layout.where, unsaid, asked=True)


def _reduction(sections: dict[str, Fields], parallelism: dict[str, Any]) -> dict[str, Any]:
    """Return how gradients are summed."""
    section = sections.get("hybrid_zero_optimizer", Fields({}, sections["model"].where))
    gathers = section.switch("overlap_sync_param")
    keys = {
        "overlap_gradient_reduction": section.switch("overlap_sync_grad", True),
        "gradient_bucket_elements": section.whole("reduce_bucket_size", 512 * 2**20),
    }
    if parallelism.get("zero_stage") == 3:
        return keys
    return keys | {"overlap_parameter_gather": gathers and parallelism.get("zero_stage") == 1}


def _precision(model: Fields) -> str:
    return DTYPES[model.text("dtype", "torch.bfloat16", [f"torch.{name}" for name in DTYPES]).removeprefix("torch.")]


def _recompute(section: Fields, model: dict[str, Any], parallelism: dict[str, Any]) -> dict[str, Any]:
    """Return the keys of ``training`` on recomputation: a share of every chunk's layers.

    Raises:
        ConfigError: it is no share.
    """
    share = section.get("checkpoint") or 0
    if not isinstance(share, bool | int | float) or not 0 <= share <= 1:
        raise section.error("checkpoint", "expected True, False or a share of the layers from 0 to 1")
    if not share:
        return {"recompute": "none"}
    chunks = parallelism.get("pipeline_parallel_size", 1) * parallelism.get("virtual_pipeline_parallel_size", 1)
    layers = int(model.get("num_layers", 1) // chunks * share)
    return {"recompute": "full"} | ({} if share == 1 else {"recompute_num_layers": layers})
