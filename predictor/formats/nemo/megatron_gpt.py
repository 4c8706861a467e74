"""Read a run of NeMo 1 (Megatron GPT): its YAML, or a command line with overrides, as arguments of Megatron-LM.

Source of names and defaults: NVIDIA/NeMo r1.23, examples/nlp/language_modeling/conf/megatron_gpt_config.yaml and
nemo/collections/nlp/models/language_modeling/megatron_base_model.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from predictor.core.base.errors import ConfigError
from predictor.core.schema.problems import Problems
from predictor.core.schema.read import Read
from predictor.formats.fields import Fields, settled_gpus
from predictor.formats.hub_models import known_model, shape_of
from predictor.formats.known_keys import KnownKeys, known_keys, rest
from predictor.formats.megatron.offloading import as_sections_say
from predictor.formats.megatron.options import Options
from predictor.formats.megatron.reader import from_options
from predictor.formats.megatron_bridge.model import named_section
from predictor.formats.nemo.started import configuration

FAMILY = "nemo"
KEYS = "nemo"
MIB = 2**20
RENAMED = {
    "activations_checkpoint_granularity": "recompute-granularity",
    "activations_checkpoint_method": "recompute-method",
    "activations_checkpoint_num_layers": "recompute-num-layers",
    "encoder_seq_length": "seq-length",
    "num_moe_experts": "num-experts",
    "qkv_bias": "add-qkv-bias",
    "rotary_percentage": "rotary-percent",
    "ub_tp_comm_overlap": "tp-comm-overlap",
    "use_flash_attention": "use-flash-attn",
    "virtual_pipeline_model_parallel_size": "num-virtual-stages-per-pipeline-rank",
}
SECTIONS = ("optim", "tokenizer", "data", "peft")  # of the section model, whose keys are read apart
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
OF_ITS_OWN = ("activation", "normalization", "override_vocab_size", "fp8", "fp8_e4m3", "fp8_hybrid")
# Adapters by the layers that NeMo calls so: nemo/collections/nlp/parts/peft_config.py.
ADAPTED = {
    "attention_qkv": ("qkv",),
    "attention_dense": ("attention_output",),
    "mlp_fc1": ("ffn_up",),
    "mlp_fc2": ("ffn_down",),
    "attention": ("qkv", "attention_output"),
    "mlp": ("ffn_up", "ffn_down"),
    "all": ("qkv", "attention_output", "ffn_up", "ffn_down"),
}
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
    content, notes = configuration(path)
    model, trainer = content.get("model") or {}, content.get("trainer") or {}
    for key, kind in OTHERS.items():
        if model.get(key) not in (None, False):
            raise ConfigError(f"{path.name}: model.{key} is given, which is of {kind}; only decoders are read")
    problems = Problems()
    options = Options({}, path.name, "model.", problems=problems.lines)
    left = problems.part(dict[str, Any](), _take, options, model)
    optim = Fields(model.get("optim") or {}, path.name, "model.optim.", problems=problems.lines)
    problems.part(None, _optimizer, options, optim)
    problems.part(None, _precision, options, trainer, model)
    devices, nodes = trainer.get("devices"), trainer.get("num_nodes")
    gpus = devices * nodes if isinstance(devices, int) and isinstance(nodes, int) and devices > 0 else None
    shape = None if "num-layers" in options.values else _elsewhere(options, model, notes)
    gpus = settled_gpus(num_gpus, gpus, path.name, notes)
    read = from_options(options, problems, notes, gpus, num_gpus is not None, shape)
    if gpus and isinstance(devices, int) and devices > 0 and nodes != 1 and gpus % devices == 0:
        read.content["parallelism"]["gpus_per_node"] = devices
    read.content["training"] |= {"framework": FAMILY} | problems.part(dict[str, Any](), _adapters, path.name, model)
    holders = (Fields(left, path.name, "model.", problems=problems.lines), optim)
    notes = [*read.notes, *rest(known_keys(KEYS), "NeMo", (*holders, _runs(trainer, path.name, problems.lines)))]
    problems.check()
    if shape is not None:
        read.unsaid.pop("model.vocab_size", None)
        read.unsaid["model.num_layers"] = (
            f"{path.name}: the model is in model.restore_from_path; take its config.json in front of this file "
            "(from: [config.json, nemo.yaml]), or"
        )
    return Read(read.content, tuple(notes), unsaid=read.unsaid, derived=read.derived)


def _runs(trainer: dict[str, Any], where: str, problems: list[str]) -> Fields:
    """Return the keys of Lightning's trainer, of which only some say something about a step."""
    fields = Fields(trainer, where, "trainer.", problems=problems)
    fields.used |= {"devices", "num_nodes", "precision"}
    if fields.whole("accumulate_grad_batches", 1) != 1:
        fields.broken(fields.error("accumulate_grad_batches", "NeMo accumulates up to global_batch_size; write 1"))
    return fields


def _set(options: Options, key: str, value: Any, name: str) -> None:
    options.values = {**options.values, key: value}
    options.names[key] = f"model.{name}"


def _take(options: Options, model: dict[str, Any]) -> dict[str, Any]:
    """Take the keys of the model as arguments; return those that are none."""
    known, arguments = known_keys(KEYS), known_keys("megatron")
    fates = {*known.refused, *known.noted, *known.irrelevant}
    left: dict[str, Any] = {}
    for name, value in model.items():
        full, argument = f"model.{name}", RENAMED.get(name, name.replace("_", "-")).replace("-", "_")
        if name in SECTIONS or (name == "transformer_block_type" and value == "pre_ln"):
            continue
        if name == "mcore_customization_config" and isinstance(value, dict) and not any(value.values()):
            continue  # both keys false: no Falcon
        if name in ON and value is not None:
            for key in ON[name] if value is False else ():
                _set(options, key, True, name)
        elif full in fates or known.is_irrelevant(full):
            left[name] = value
        elif isinstance(value, dict):
            left |= {f"{name}.{key}": inner for key, inner in value.items()}
        elif argument in OF_ITS_OWN or argument in arguments.read or _has_a_fate(argument, arguments):
            if value is not None and value is not False:
                _set(options, argument.replace("_", "-"), value, name)
        else:
            left[name] = value
    options.values = as_sections_say(options.values)
    _shape(options, model)
    return left


def _has_a_fate(argument: str, arguments: KnownKeys) -> bool:
    return arguments.is_irrelevant(argument) or argument in arguments.noted or argument in arguments.refused


def _elsewhere(options: Options, model: dict[str, Any], notes: list[str]) -> dict[str, Any] | None:
    """Return the section ``model`` of a run whose sizes a checkpoint holds; None where no checkpoint is named."""
    if not model.get("restore_from_path") and not model.get("pretrained_checkpoint"):
        return None
    data = (model.get("data") or {}).get("train_ds") or {}
    length = model.get("encoder_seq_length") or data.get("max_seq_length")
    if isinstance(length, int):
        options.values = {**options.values, "seq-length": length}
    options.values = {key: value for key, value in options.values.items() if key not in ("normalization", "add-bias")}
    return named_section(options, {}, notes)


def _adapters(where: str, model: dict[str, Any]) -> dict[str, Any]:
    """Return the key of ``training`` on adapters.

    Raises:
        ConfigError: they are not LoRA.
    """
    peft = model.get("peft") or {}
    scheme = str(peft.get("peft_scheme") or "none").lower()
    if scheme in ("none", "null"):
        return {}
    if scheme != "lora":
        raise ConfigError(f"{where}: model.peft.peft_scheme is {scheme}; only lora is modelled, or null")
    tuning = peft.get("lora_tuning") or {}
    named = tuning.get("target_modules") or ["attention_qkv"]
    targets = [target for name in named for target in ADAPTED.get(name, ())]
    if not targets or not set(named) <= ADAPTED.keys():
        raise ConfigError(
            f"{where}: model.peft.lora_tuning.target_modules is {named}; expected of {', '.join(ADAPTED)}"
        )
    rank, dropout = tuning.get("adapter_dim", 32), tuning.get("adapter_dropout") or 0.0
    return {"lora": {"rank": rank, "targets": targets} | ({"dropout": float(dropout)} if dropout else {})}


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
    elif (named := known_model(str(tokenizer.get("type")))) is not None:
        values["vocab-size"] = shape_of(named.section)["vocab_size"]
    if model.get("override_vocab_size"):
        values["vocab-size"] = model["override_vocab_size"]
        values.pop("override-vocab-size", None)
    is_local = not (model.get("transformer_engine") or model.get("mcore_gpt") or model.get("fp8"))
    values.setdefault("transformer-impl", "local" if is_local else "transformer_engine")
    options.values = {key: value for key, value in values.items() if value is not None}


def _optimizer(options: Options, optim: Fields) -> None:
    """Take how gradients are reduced and states shared out.

    Raises:
        ConfigError: the optimizer is not modelled.
    """
    name = optim.text("name", "fused_adam", ADAMS)
    in_half = optim.get("grad_sync_dtype") in ("bf16", "fp16")
    values = {
        "use-distributed-optimizer": name in SHARDED,
        "overlap-grad-reduce": optim.switch("overlap_grad_sync"),
        "overlap-param-gather": optim.switch("overlap_param_sync"),
        "grad-reduce-in-bf16": in_half,
    }
    options.values = {**options.values, **{key: True for key, value in values.items() if value}}
    megabytes, elements = optim.get("bucket_cap_mb"), optim.get("ddp_bucket_size")
    if isinstance(megabytes, int) and name == "distributed_fused_adam":
        options.values = {**options.values, "ddp-bucket-size": megabytes * MIB // (2 if in_half else 4)}
    elif isinstance(elements, int) and name in SHARDED:
        options.values = {**options.values, "ddp-bucket-size": elements}


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
