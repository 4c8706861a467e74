"""Read a configuration of nanotron: sizes, parallelism, batch and optimizer.

Source of names and defaults: huggingface/nanotron 0.4, src/nanotron/config (config.py, models_config.py,
parallelism_config.py), models/base.py (split over stages), models/llama.py and models/qwen.py (kernels), helpers.py and
trainer.py (gradients); models of 2025: examples/config_qwen.yaml.
"""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path
from typing import Any

from predictor.core.base.errors import ConfigError
from predictor.core.base.read_yaml import load_foreign
from predictor.core.schema.problems import Problems
from predictor.core.schema.read import Read
from predictor.core.workload.frameworks import TORCH_ATTENTION
from predictor.formats.fields import Fields
from predictor.formats.fsdp_stack import FRAMEWORK, STATES_16
from predictor.formats.known_keys import known_keys, rest

KEYS = "nanotron"
SECTIONS = ("general", "model", "optimizer", "parallelism", "tokens")
FAMILIES = {"is_llama_config": "llama", "is_qwen2_config": "qwen", "is_starcoder2_config": "starcoder"}
ACTIVATIONS = {"silu": "swiglu", "gelu": "geglu", "gelu_pytorch_tanh": "geglu"}
PRECISIONS = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
ENGINES = {"1f1b": "1f1b", "afab": "all_forward_all_backward"}


def read(path: Path, num_gpus: int | None = None) -> Read:
    """Read a configuration.

    Args:
        path: the YAML file.
        num_gpus: GPUs of the run, which settle the replicas in place of ``parallelism.dp``.

    Raises:
        ConfigError: something changes the cost in a way that is not modelled; the message has a line for each problem.
    """
    problems, notes = Problems(), list[str]()
    whole = Fields(load_foreign(path.read_text(encoding="utf-8")), path.name, problems=problems.lines)
    model, optimizer, layout, tokens = (whole.section(name) for name in SECTIONS[1:])
    config = model.section("model_config")
    nothing = dict[str, Any]
    sizes = problems.part(nothing(), _model, config, notes)
    sizes["sequence_length"] = tokens.whole("sequence_length")
    training, gradients = problems.part((nothing(), nothing()), _precision, model, optimizer)
    parallelism = problems.part(nothing(), _layout, layout, sizes, num_gpus)
    parallelism |= problems.part(nothing(), _replicas, model, optimizer, parallelism) | gradients
    training |= {
        "micro_batch_size": tokens.whole("micro_batch_size"),
        "num_micro_batches": tokens.whole("batch_accumulation_per_replica", 1),
        "recompute": _recompute(layout),
        "attention_kernel": str(TORCH_ATTENTION),
        "framework": FRAMEWORK,
    }
    steps = tokens.optional_whole("train_steps")
    factory = optimizer.section("optimizer_factory")
    if factory.text("name", "adamW").lower() != "adamw":
        factory.broken(factory.error("name", "only adamW is modelled"))
    holders = [whole, model, *([config] if sizes.get("num_layers") else []), optimizer, factory, layout, tokens]
    notes += rest(known_keys(KEYS), "nanotron", holders, (*SECTIONS, "model.model_config"))
    problems.check()
    content = {"model": sizes, "parallelism": parallelism, "training": training}
    if steps is not None:
        samples = training["micro_batch_size"] * training["num_micro_batches"] * parallelism["data_parallel_size"]
        content["budget"] = {"train_tokens": steps * samples * sizes["sequence_length"]}
    return Read(content, tuple(notes))


def _model(config: Fields, notes: list[str]) -> dict[str, Any]:
    """Return the section ``model`` without its sequence length.

    Raises:
        ConfigError: it is of a family that is not modelled.
    """
    others = [key for key in config.values if key.startswith("is_") and key.endswith("_config") and key not in FAMILIES]
    if others:
        raise config.error(others[0], f"this family is not modelled; known: {', '.join(FAMILIES)}")
    family = next((name for key, name in FAMILIES.items() if config.switch(key)), "llama")
    if family == "starcoder":
        return _starcoder(config)
    heads, hidden = config.whole("num_attention_heads", 32), config.whole("hidden_size", 4096)
    keys: dict[str, Any] = {
        "num_layers": config.whole("num_hidden_layers", 32),
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": config.whole("num_key_value_heads", heads),
        "ffn_hidden_size": config.whole("intermediate_size", 11008),
        "vocab_size": config.whole("vocab_size", 32000),
        "activation": ACTIVATIONS[config.text("hidden_act", "silu", ACTIVATIONS)],
        "tied_embeddings": config.switch("tie_word_embeddings"),
        "biases": "qkv" if config.switch("attention_bias") else False,
        "rotary_fraction": 1.0,
        "fused_rope": True,
        "normalization": "fused_rms_norm",
        "loss": "vocabulary_parallel",
    }
    keys |= {"qk_norm": True} if config.switch("use_qk_norm") or config.switch("qk_norm") else {}
    window = config.optional_whole("sliding_window_size")
    keys |= {"sliding_window": window} if window else {}
    unrotated = config.optional_whole("no_rope_layer", least=0)
    keys |= {"rotary_layers": [True] * (unrotated - 1) + [False]} if unrotated else {}
    if config.switch("_use_doc_masking"):
        notes.append(f"{config.where}: attention is predicted over whole samples, not documents: set document_tokens")
    if config.switch("z_loss_enabled"):
        notes.append(f"{config.where}: the loss is predicted without its term of the logits' sum (z loss)")
    return keys | _experts(config.section("moe_config"), keys["ffn_hidden_size"])


def _experts(section: Fields, width: int) -> dict[str, Any]:
    if not section.values:
        return {}
    routed = section.whole("moe_intermediate_size", width)
    moe = {
        "num_experts": section.whole("num_experts"),
        "experts_per_token": section.whole("top_k", 1),
        "expert_ffn_hidden_size": routed,
    }
    if section.switch("enable_shared_expert"):
        moe["shared_expert_ffn_hidden_size"] = section.whole("shared_expert_intermediate_size", routed)
    return {"moe": moe}


def _starcoder(config: Fields) -> dict[str, Any]:
    """Return the section ``model`` of StarCoder 2: LayerNorm, biases, GELU, grouped queries or one shared head."""
    heads, hidden = config.whole("num_attention_heads", 16), config.whole("hidden_size", 2048)
    grouped = config.switch("grouped_query")
    config.switch("multi_query")
    window = config.optional_whole("sliding_window_size")
    if config.get("global_attn_layers"):
        config.broken(config.error("global_attn_layers", "write model.layer_types in a configuration instead"))
    keys: dict[str, Any] = {
        "num_layers": config.whole("num_hidden_layers", 24),
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": config.whole("num_kv_heads") if grouped else 1,
        "ffn_hidden_size": config.whole("intermediate_size", 4 * hidden),
        "vocab_size": config.whole("vocab_size", 49280),
        "activation": "gelu",
        "tied_embeddings": True,
        "biases": True,
        "rotary_fraction": 1.0 if config.switch("use_rotary_embeddings", True) else 0.0,
        "normalization": "layer_norm",
        "loss": "vocabulary_parallel",
        "attention_dropout": config.real("attn_pdrop", 0.1),
        "hidden_dropout": config.real("resid_pdrop", 0.1),
    }
    return keys | ({"sliding_window": window} if window else {})


def _precision(model: Fields, optimizer: Fields) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the keys of ``training`` and of ``parallelism`` on precision.

    fp32 weights stand beside those of 16 bits only where gradients are accumulated in fp32.
    """
    dtype = model.text("dtype", "bfloat16", PRECISIONS)
    in_fp32 = optimizer.switch("accumulate_grad_in_fp32", True)
    training: dict[str, Any] = {"precision": PRECISIONS[dtype]}
    if dtype != "float32" and not in_fp32:
        training["optimizer_state_bytes"] = STATES_16
    return training, {"fp32_gradients": in_fp32 and dtype != "float32"}


def _layout(layout: Fields, sizes: dict[str, Any], num_gpus: int | None) -> dict[str, Any]:
    """Return the degrees and the split of the layers.

    Raises:
        ConfigError: the degrees do not make the GPUs, or the engine is not modelled.
    """
    tp, pp, dp = layout.whole("tp"), layout.whole("pp"), layout.whole("dp")
    cp, ep = layout.whole("context_parallel_size", 1), layout.whole("expert_parallel_size", 1)
    engine = layout.text("pp_engine", "afab").lower()
    if engine not in ENGINES:
        raise layout.error("pp_engine", f"expected {', '.join(ENGINES)}")
    if num_gpus is not None:
        if num_gpus % (tp * pp * cp):
            raise ConfigError(f"{layout.where}: tp, pp and cp make {tp * pp * cp} GPUs; the run has {num_gpus}")
        dp = num_gpus // (tp * pp * cp)
    splits = layout.text("tp_mode", "ALL_REDUCE").upper() == "REDUCE_SCATTER" and tp > 1
    asynchronous = layout.switch("tp_linear_async_communication")
    layout.get("tp_recompute_allgather")
    keys: dict[str, Any] = {
        "tensor_parallel_size": tp,
        "pipeline_parallel_size": pp,
        "context_parallel_size": cp,
        "data_parallel_size": dp,
        "sequence_parallel": splits,
        "overlap_tensor_parallel": asynchronous and tp > 1,
    }
    keys |= {"expert_parallel_size": ep} if ep > 1 else {}
    if pp == 1 or "num_layers" not in sizes:
        return keys
    split = stages(sizes, pp)
    if min(split) < 1:
        raise layout.error(
            "pp", f"nanotron splits the layers as {split}, which leaves a stage without any: not modelled"
        )
    return keys | {"schedule": ENGINES[engine], "layers_per_stage": split}


def stages(sizes: dict[str, Any], pp: int) -> list[int]:
    """Return the layers of each stage, by the cost of blocks: a stage ends behind the block that exceeds its share.

    Source: nanotron/models/base.py (build_model), models/llama.py (get_block_compute_costs).

    >>> stages({"num_layers": 8, "hidden_size": 4, "ffn_hidden_size": 8, "vocab_size": 160}, 2)
    [7, 1]
    """
    hidden = sizes["hidden_size"]
    layer = 4 * hidden * hidden + 3 * sizes["ffn_hidden_size"] * hidden
    # Embedding, layers, final norm, output projection, cast, loss: those without a cost go where they come.
    costs = [0, *[layer] * sizes["num_layers"], 0, sizes["vocab_size"] * hidden]
    sums = list(accumulate(costs))
    split, stage = [0] * pp, 0
    for block, done in enumerate(sums):
        split[stage] += 1 <= block <= sizes["num_layers"]
        stage = min(stage + (done > sums[-1] * (stage + 1) / pp), pp - 1)
    return split


def _replicas(model: Fields, optimizer: Fields, parallelism: dict[str, Any]) -> dict[str, Any]:
    """Return how gradients are summed: torch's DDP behind the last micro-batch's backward pass, ZeRO-1 scattering.

    Source: helpers.py (init_optimizer_and_grad_accumulator: a hook that scatters with accumulation in fp32).
    """
    stage = optimizer.whole("zero_stage", 0, least=0)
    if stage > 1:
        raise optimizer.error("zero_stage", "nanotron has 0 and 1")
    scatters = stage == 1 and optimizer.values.get("accumulate_grad_in_fp32", True)
    return {
        "zero_stage": stage,
        "overlap_gradient_reduction": True,
        "overlap_parameter_gather": False,
        "gradient_reduction": "reduce_scatter" if scatters else "all_reduce",
        "gradient_bucket_elements": model.whole("ddp_bucket_cap_mb", 25) * 2**20 // 2,
    }


def _recompute(layout: Fields) -> str:
    """Return what is computed again; in the releases of 2024 by the name of a granularity."""
    older = layout.get("recompute_granularity")
    if older not in (None, "full", "selective", "FULL", "SELECTIVE"):
        layout.broken(layout.error("recompute_granularity", "expected full or selective"))
    return "full" if layout.switch("recompute_layer") or str(older).lower() == "full" else "none"
