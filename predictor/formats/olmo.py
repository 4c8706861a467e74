"""Read a configuration of OLMo's first trainer: sizes, batch, precision and FSDP or DDP.

Source of names and defaults: allenai/OLMo 0.6.0, olmo/config.py (ModelConfig, FSDPConfig, TrainConfig), olmo/model.py.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from predictor.core.base.read_yaml import load_foreign
from predictor.core.schema.problems import Problems
from predictor.core.schema.read import Read
from predictor.core.workload.frameworks import LIGHTNING, LIGHTNING_FSDP, TORCH_ATTENTION
from predictor.formats.fields import Fields
from predictor.formats.fsdp_stack import SHARDING
from predictor.formats.hub_section import replicas
from predictor.formats.interpolation import filled
from predictor.formats.known_keys import known_keys, rest

FAMILY = "lightning"  # FSDP1 of models in plain PyTorch, as there
KEYS = "olmo"
ACTIVATIONS = {"swiglu": ("swiglu", 2), "gelu": ("gelu", 1), "relu": ("relu", 1)}  # ours; matrices in mlp_hidden_size
NORMS = {"default": "layer_norm", "low_precision": "layer_norm", "amd_compatible": "layer_norm", "rms": "rms_norm"}
PRECISIONS = {"amp_bf16": "bf16", "amp_fp16": "fp16", "fp32": "fp32"}
CHECKPOINTED = {"whole_layer": 1, "one_in_two": 2, "one_in_three": 3, "one_in_four": 4, "one_in_eight": 8}
DURATION = re.compile(r"^([\d._e+]+)\s*(T|ba)?$")


def read(path: Path, num_gpus: int | None = None) -> Read:
    """Read a configuration.

    Args:
        path: the YAML file.
        num_gpus: GPUs of the run, which the file does not say.

    Raises:
        ConfigError: something changes the cost in a way that is not modelled; the message has a line for each problem.
    """
    problems, notes, unsaid = Problems(), list[str](), dict[str, str]()
    content = filled(load_foreign(path.read_text(encoding="utf-8")), path.name)
    whole = Fields(content, path.name, problems=problems.lines)
    section, nothing = whole.section("model"), dict[str, Any]
    model = problems.part(nothing(), _model, section)
    model["loss"] = "fused" if whole.switch("fused_loss") else "torch"
    precision = PRECISIONS[whole.text("precision", "amp_bf16", PRECISIONS)]
    total = whole.whole("global_train_batch_size", 512)
    training: dict[str, Any] = {
        "micro_batch_size": whole.whole("device_train_microbatch_size", 16),
        "global_batch_size": total,
        "precision": precision,
        "attention_kernel": str(TORCH_ATTENTION),
        "framework": FAMILY,
        **problems.part(nothing(), _recompute, whole),
    }
    if whole.get("compile") is not None:
        training["compiled"] = True
    parallelism = problems.part(nothing(), _replicas, whole, precision, notes)
    parallelism |= replicas(num_gpus, 1, path.name, unsaid)
    optimizer = whole.section("optimizer")
    if optimizer.text("name", "adamw") not in ("adamw", "decoupled_adamw"):
        optimizer.broken(optimizer.error("name", "only adamw is modelled"))
    holders = [whole, *([section] if "num_layers" in model else []), optimizer]
    notes += rest(known_keys(KEYS), "OLMo", holders, ("model", "optimizer", "fsdp"))
    problems.check()
    content = {"model": model, "parallelism": parallelism, "training": training}
    tokens = _tokens(whole.get("max_duration"), total * model["sequence_length"])
    return Read(content | ({} if tokens is None else {"budget": {"train_tokens": tokens}}), tuple(notes), unsaid=unsaid)


def _model(section: Fields) -> dict[str, Any]:
    """Return the section ``model``.

    Raises:
        ConfigError: its blocks are not modelled.
    """
    hidden, heads = section.whole("d_model", 768), section.whole("n_heads", 12)
    activation, matrices = ACTIVATIONS[section.text("activation_type", "swiglu", ACTIVATIONS)]
    block = section.text("block_type", "sequential", ("sequential", "parallel", "llama"))
    shared = heads if not section.switch("multi_query_attention") else 1
    biases = section.switch("include_bias", True)
    embedded = section.optional_whole("embedding_size")
    vocabulary = section.whole("vocab_size", 50257)
    keys: dict[str, Any] = {
        "num_layers": section.whole("n_layers", 12),
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": section.whole("n_kv_heads", shared),
        "sequence_length": section.whole("max_sequence_length", 1024),
        "ffn_hidden_size": section.whole("mlp_hidden_size", int(section.real("mlp_ratio", 4) * hidden)) // matrices,
        "vocab_size": embedded if embedded is not None else vocabulary,
        "activation": activation,
        "normalization": NORMS[section.text("layer_norm_type", "default", NORMS)],
        "norm_weights": section.switch("layer_norm_with_affine", True),
        "norm_biases": section.switch("bias_for_layer_norm", biases),
        "biases": biases,
        "tied_embeddings": section.switch("weight_tying", True),
        "attention_dropout": section.real("attention_dropout", 0.1),
        "hidden_dropout": section.real("residual_dropout", 0.1),
    }
    keys["norm_biases"] = keys["norm_biases"] and keys["normalization"] == "layer_norm"
    keys |= {"parallel_residual": True, "shared_input_norm": True} if block == "parallel" else {}
    keys |= {"qk_norm": "whole"} if section.switch("attention_layer_norm") else {}
    keys |= {"embedding_norm": True} if section.switch("embedding_layer_norm") else {}
    section.switch("norm_after")  # the norms stand behind attention and FFN instead of before: as many
    rotates = section.switch("rope")
    if section.switch("alibi"):
        return keys | {"positions": "alibi", "rotary_fraction": 0.0}
    return keys | {"rotary_fraction": 1.0 if rotates else 0.0}


def _recompute(whole: Fields) -> dict[str, Any]:
    """Return the keys of ``training`` on recomputation.

    Raises:
        ConfigError: the layers that are computed again are not evenly spread, or it is parts of layers.
    """
    strategy = whole.get("activation_checkpointing")
    if strategy is None:
        return {"recompute": "none"}
    if strategy not in CHECKPOINTED:
        raise whole.error("activation_checkpointing", f"modelled: {', '.join(CHECKPOINTED)}")
    every = CHECKPOINTED[strategy]
    return {"recompute": "full"} | ({"recompute_every": every} if every > 1 else {})


def _replicas(whole: Fields, precision: str, notes: list[str]) -> dict[str, Any]:
    """Return how weights are sharded and gradients reduced."""
    how = whole.text("distributed_strategy", "fsdp" if whole.has("fsdp") else "ddp", ("fsdp", "ddp", "single"))
    if how != "fsdp":
        keys = LIGHTNING.section("parallelism")
        if how == "ddp" and whole.section("ddp").text("grad_sync_mode", "batch") == "micro_batch":
            notes.append(
                f"{whole.where}: gradients are predicted to be reduced once a step, not with every micro-batch"
            )
        return keys | ({} if precision != "fp32" else {"fp32_parameters": False, "fp32_gradients": False})
    section = whole.section("fsdp")
    stage, reshards = SHARDING[section.text("sharding_strategy", "FULL_SHARD", SHARDING)]
    reduces_in_fp32 = section.text("precision", "pure", ("pure", "mixed")) == "mixed"
    wraps = section.text("wrapping_strategy", "none")
    section.switch("use_orig_params", True)
    copies = section.optional_whole("hybrid_sharding_num_model_replicas")
    if copies is not None and "HYBRID" in section.values.get("sharding_strategy", ""):
        section.broken(section.error("hybrid_sharding_num_model_replicas", "write parallelism.zero_group_size instead"))
    if not wraps.startswith("by_block"):
        notes.append(
            f"{whole.where}: weights are predicted to be gathered layer by layer, not with fsdp.wrapping_strategy"
        )
    keys = LIGHTNING_FSDP.section("parallelism") | {"fp32_gradients": reduces_in_fp32 and precision != "fp32"}
    keys |= {"fp32_parameters": precision != "fp32", "zero_stage": stage}
    return keys if reshards else keys | {"reshard_after_forward": False}


def _tokens(duration: Any, per_step: int) -> int | None:
    """Return the tokens of a training: said, or steps of it; None for epochs."""
    found = DURATION.match(str(duration))
    if found is None:
        return None
    return int(float(found[1])) * (1 if found[2] == "T" else per_step)
