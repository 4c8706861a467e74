"""Read a YAML configuration of NeMo 1 (Megatron GPT): sections trainer and model, as arguments of Megatron-LM.

Source of names and defaults: NVIDIA/NeMo r1.23, examples/nlp/language_modeling/conf/megatron_gpt_config.yaml and
nemo/collections/nlp/models/language_modeling/megatron_base_model.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from predictor.core.base.errors import ConfigError
from predictor.core.base.read_yaml import read_mapping
from predictor.core.schema.problems import Problems
from predictor.core.schema.read import Read
from predictor.formats.interpolation import filled
from predictor.formats.known_keys import known_keys
from predictor.formats.megatron.offloading import as_sections_say
from predictor.formats.megatron.options import OFF, Options
from predictor.formats.megatron.reader import from_options

FORMAT = "NeMo YAML"
FAMILY = "nemo"
KEYS = "nemo"
TELLING = "tensor_model_parallel_size"
MIB = 2**20
RENAMED = {
    "activations_checkpoint_granularity": "recompute-granularity",
    "activations_checkpoint_method": "recompute-method",
    "activations_checkpoint_num_layers": "recompute-num-layers",
    "encoder_seq_length": "seq-length",
    "num_moe_experts": "num-experts",
    "rotary_percentage": "rotary-percent",
    "ub_tp_comm_overlap": "tp-comm-overlap",
    "use_flash_attention": "use-flash-attn",
    "virtual_pipeline_model_parallel_size": "num-virtual-stages-per-pipeline-rank",
}
SECTIONS = ("optim", "tokenizer", "data")  # of the section model, whose keys are read apart
# Switches that are on unless a file turns them off, with the arguments that do so.
ON = {
    "bias": ("disable-bias-linear",),
    "bias_activation_fusion": ("no-bias-swiglu-fusion", "no-bias-gelu-fusion"),
    "bias_dropout_add_fusion": ("no-bias-dropout-fusion",),
    "gradient_accumulation_fusion": ("no-gradient-accumulation-fusion",),
    "masked_softmax_fusion": ("no-masked-softmax-fusion",),
    "share_embeddings_and_output_weights": ("untie-embeddings-and-output-weights",),
    "apply_rope_fusion": ("no-rope-fusion",),
    "fp8_wgrad": ("no-fp8-wgrad",),
}
ACTIVATIONS = {
    "gelu": None,
    "fast-gelu": None,
    "geglu": "quick-geglu",
    "fast-geglu": "quick-geglu",
    "swiglu": "swiglu",
    "fast-swiglu": "swiglu",
    "squared-relu": "squared-relu",
}
NORMS = {"layernorm": "LayerNorm", "layernorm1p": "LayerNorm", "rmsnorm": "RMSNorm"}
SHARDED = ("distributed_fused_adam", "mcore_distributed_optim", "megatron_optim")
ADAMS = ("adam", "adamw", "fused_adam", *SHARDED)
# Keys that only models of other kinds have, with what these are.
OTHERS = {
    "bert_binary_head": "an encoder (BERT)",
    "num_tokentypes": "an encoder (BERT)",
    "encoder": "an encoder with a decoder (T5)",
    "decoder": "an encoder with a decoder (T5)",
    "decoder_seq_length": "an encoder with a decoder (T5)",
    "retro": "retrieval (RETRO)",
    "mm_cfg": "a model with a vision tower",
    "vision": "a model with a vision tower",
    "peft": "adapters, whose base model is in another file",
    "hyena": "Hyena layers",
}


def read(path: Path, num_gpus: int | None = None) -> Read:
    """Read a configuration of NeMo.

    Args:
        path: the file.
        num_gpus: GPUs of the run; otherwise trainer.num_nodes × trainer.devices.

    Raises:
        ConfigError: it is no decoder's, or something changes the cost in a way that is not modelled; the message has a
            line for each problem.
    """
    content = filled(read_mapping(path), path.name)
    content = content.get("training", content) if "trainer" not in content else content
    model, trainer = content.get("model") or {}, content.get("trainer") or {}
    for key, kind in OTHERS.items():
        if model.get(key) not in (None, False):
            raise ConfigError(f"{path.name}: model.{key} is given, which is of {kind}; only decoders are read")
    problems = Problems()
    notes: list[str] = []
    options = Options({}, path.name, "model.", problems=problems.lines)
    problems.part(None, _take, options, model, notes)
    problems.part(None, _optimizer, options, model.get("optim") or {})
    problems.part(None, _precision, options, trainer, model)
    devices, nodes = trainer.get("devices"), trainer.get("num_nodes")
    gpus = devices * nodes if isinstance(devices, int) and isinstance(nodes, int) and devices > 0 else None
    read = from_options(options, problems, notes, num_gpus or gpus, num_gpus is not None)
    if isinstance(devices, int) and devices > 0 and nodes != 1:
        read.content["parallelism"]["gpus_per_node"] = devices
    read.content["training"] |= {"framework": FAMILY}
    problems.check()
    return Read(read.content, read.notes, FORMAT, read.unsaid, read.derived)


def _set(options: Options, key: str, value: Any, name: str) -> None:
    options.values = {**options.values, key: value}
    options.names[key] = f"model.{name}"


def _take(options: Options, model: dict[str, Any], notes: list[str]) -> None:
    """Take the keys of the model as arguments, after recording those that are refused."""
    known = known_keys(KEYS)
    for name, value in model.items():
        if known.is_irrelevant(name) or name in SECTIONS:
            continue
        if isinstance(value, dict) and name not in known.refused:
            options.broken(
                ConfigError(
                    f"{options.where}: model.{name} is a section that is not read; remove it if it changes no cost"
                )
            )
            continue
        if name == "transformer_block_type" and value == "pre_ln":
            continue
        if name in known.noted:
            notes += [] if value in OFF else [known.noted[name]]
        elif name in known.refused:
            if value not in OFF and value != 0:
                options.broken(ConfigError(f"{options.where}: model.{name} is {value}; {known.refused[name]}"))
        elif name in ON:
            for key in ON[name] if value is False else ():
                _set(options, key, True, name)
        elif value is not None and value is not False:
            _set(options, RENAMED.get(name, name.replace("_", "-")), value, name)
    options.values = as_sections_say(options.values)
    _shape(options, model)


def _shape(options: Options, model: dict[str, Any]) -> None:
    """Take what NeMo spells in its own words: activation, norm, heads, vocabulary."""
    activation = str(model.get("activation", "gelu"))
    if activation not in ACTIVATIONS:
        options.broken(options.error("activation", f"expected {', '.join(ACTIVATIONS)}"))
    norm = str(model.get("normalization", "layernorm"))
    if norm not in NORMS:
        options.broken(options.error("normalization", f"expected {', '.join(NORMS)}"))
    values = {key: value for key, value in options.values.items() if key not in ("activation", "normalization")}
    values["normalization"] = NORMS.get(norm, "LayerNorm")
    if (switch := ACTIVATIONS.get(activation)) is not None:
        values[switch] = True
    if values.get("num-query-groups"):
        values["group-query-attention"] = True
    if "num-attention-heads" in values and "seq-length" not in values:
        values["seq-length"] = (model.get("data") or {}).get("seq_length")
    tokenizer = model.get("tokenizer") or {}
    if tokenizer.get("library") == "megatron" and tokenizer.get("type"):
        values["tokenizer-type"] = tokenizer["type"]
    if model.get("override_vocab_size"):
        values["vocab-size"] = model["override_vocab_size"]
        values.pop("override-vocab-size", None)
    is_local = not (model.get("transformer_engine") or model.get("mcore_gpt") or model.get("fp8"))
    values.setdefault("transformer-impl", "local" if is_local else "transformer_engine")
    options.values = {key: value for key, value in values.items() if value is not None}


def _optimizer(options: Options, optim: dict[str, Any]) -> None:
    """Take how gradients are reduced and states shared out.

    Raises:
        ConfigError: the optimizer is not modelled.
    """
    name = str(optim.get("name", "fused_adam"))
    if name not in ADAMS:
        raise ConfigError(f"{options.where}: model.optim.name is {name}; only Adam is modelled: {', '.join(ADAMS)}")
    in_half = optim.get("grad_sync_dtype") in ("bf16", "fp16")
    values = {
        "use-distributed-optimizer": name in SHARDED,
        "overlap-grad-reduce": optim.get("overlap_grad_sync") is True,
    }
    values |= {"overlap-param-gather": optim.get("overlap_param_sync") is True, "grad-reduce-in-bf16": in_half}
    options.values = {**options.values, **{key: True for key, value in values.items() if value}}
    bucket = optim.get("bucket_cap_mb")
    if isinstance(bucket, int) and name == "distributed_fused_adam":
        options.values = {**options.values, "ddp-bucket-size": bucket * MIB // (2 if in_half else 4)}


def _precision(options: Options, trainer: dict[str, Any], model: dict[str, Any]) -> None:
    """Take the precision of the trainer, and FP8 of the model.

    Raises:
        ConfigError: the precision is not known.
    """
    written = str(trainer.get("precision", 32)).removesuffix("-mixed").removesuffix("-true")
    names = {"bf16": "bf16", "16": "fp16", "fp16": "fp16", "32": "", "fp32": ""}
    if written not in names:
        raise ConfigError(f"{options.where}: trainer.precision is {written}; expected bf16, 16 or 32")
    values = {**options.values, **({names[written]: True} if names[written] else {})}
    values.pop("fp8", None)
    is_e4m3 = values.pop("fp8-e4m3", None) is True
    values.pop("fp8-hybrid", None)
    if model.get("fp8") is True:
        values["fp8-format"] = "e4m3" if is_e4m3 else "hybrid"
        values["fp8-recipe"] = "delayed"
    options.values = values
