"""Parameters of a model section, counted tensor by tensor as a checkpoint lists them, apart from the predictor."""

from __future__ import annotations

from typing import Any

ATTENTION = ("full_attention", "sliding_attention", "chunked_attention")
GATED = ("swiglu", "geglu")


def counted(model: dict[str, Any]) -> int:
    """Return the parameters of a model section."""
    hidden, vocabulary = int(model["hidden_size"]), int(model["vocab_size"])
    mixers = model.get("layer_types") or ["full_attention"]
    total = _norm(model) * (model.get("final_norm", True) + model.get("embedding_norm", False))
    for layer in range(model["num_layers"]):
        total += _layer(model, mixers[layer % len(mixers)], _ffn_type(model, layer))
    rotates = model.get("positions", "rotary") == "rotary" and model.get("rotary_fraction", 1.0)
    if model.get("positions") == "learned" or ("positions" not in model and not rotates):
        total += model.get("num_position_embeddings", model["sequence_length"]) * hidden
    total += vocabulary * (1 if model.get("lm_head_bias") else 0) + _encoder(model)
    return int(total + (1 if model["tied_embeddings"] else 2) * vocabulary * hidden)


def _norm(model: dict[str, Any], width: int | None = None) -> int:
    if not model.get("norm_weights", True):
        return 0
    has_bias = model.get("norm_biases", model.get("normalization") == "layer_norm")
    return (width or int(model["hidden_size"])) * (2 if has_bias else 1)


def _ffn_type(model: dict[str, Any], layer: int) -> str:
    if "ffn_types" in model:
        return str(model["ffn_types"][layer % len(model["ffn_types"])])
    return "experts" if "moe" in model and layer >= model["moe"].get("num_dense_layers", 0) else "dense"


def _layer(model: dict[str, Any], mixer: str, ffn: str) -> int:
    branches = (mixer != "none") + (ffn != "none")
    norms = branches * (2 if model.get("post_norms") else 1) - bool(model.get("shared_input_norm"))
    total = norms * _norm(model)
    if mixer in ATTENTION:
        total += _latent(model) if "latent_attention" in model else _attention(model)
    elif mixer == "mamba2":
        total += _mamba2(model)
    elif mixer == "gated_delta":
        total += _gated_delta(model)
    elif mixer == "recurrence":
        sizes = model["recurrence"]
        total += sum(inputs * outputs for inputs, outputs in sizes["projections"]) + sizes["vectors"]
    if ffn == "dense":
        total += _ffn(model, model["ffn_hidden_size"])
    return total + (_experts(model) if ffn == "experts" else 0)


def _linear(inputs: int, outputs: int, bias: bool = False) -> int:
    return inputs * outputs + (outputs if bias else 0)


def _attention(model: dict[str, Any]) -> int:
    hidden, heads = model["hidden_size"], model["num_attention_heads"]
    head_dim = model.get("head_dim", hidden // heads)
    query, key = heads * head_dim, model.get("num_key_value_heads", heads) * head_dim
    qkv_bias, out_bias = model["biases"] in (True, "qkv", "attention"), model["biases"] in (True, "attention")
    total = sum(_linear(hidden, width, qkv_bias) for width in (query, key, key)) + _linear(query, hidden, out_bias)
    if model.get("attention_output_gate"):
        total += _linear(hidden, query, qkv_bias)
    if model.get("qk_norm") is True:
        total += 2 * _norm(model, head_dim)
    elif model.get("qk_norm") == "whole":
        total += _norm(model, query) + _norm(model, key)
    return int(total + (heads if model.get("attention_sinks") else 0))


def _latent(model: dict[str, Any]) -> int:
    hidden, heads, sizes = model["hidden_size"], model["num_attention_heads"], model["latent_attention"]
    nope, rope, value = sizes["qk_nope_head_dim"], sizes["qk_rope_head_dim"], sizes["v_head_dim"]
    rank, of_queries = sizes["kv_lora_rank"], sizes.get("q_lora_rank")
    total = _linear(hidden, rank + rope) + rank + _linear(rank, heads * (nope + value)) + _linear(heads * value, hidden)
    if of_queries is None:
        total += _linear(hidden, heads * (nope + rope))
    else:
        total += _linear(hidden, of_queries) + of_queries + _linear(of_queries, heads * (nope + rope))
    if indexer := sizes.get("indexer"):
        width, count = indexer["head_dim"], indexer["num_heads"]
        total += _linear(of_queries, count * width) + _linear(hidden, width) + 2 * width + _linear(hidden, count)
    return int(total)


def _mamba2(model: dict[str, Any]) -> int:
    hidden, sizes = model["hidden_size"], model["mamba2"]
    inner, states = sizes["num_heads"] * sizes["head_dim"], sizes["num_groups"] * sizes["state_size"]
    convolved = inner + 2 * states
    total = _linear(hidden, inner + convolved + sizes["num_heads"]) + _linear(inner, hidden) + inner
    return int(total + convolved * (sizes["conv_kernel"] + sizes.get("conv_bias", True)) + 3 * sizes["num_heads"])


def _gated_delta(model: dict[str, Any]) -> int:
    hidden, sizes = model["hidden_size"], model["gated_delta"]
    keys, heads = sizes["num_key_heads"] * sizes["key_head_dim"], sizes["num_value_heads"]
    values = heads * sizes["value_head_dim"]
    of_channels, rank = sizes.get("channel_decay", False), sizes.get("gate_rank", 0)
    total = _linear(hidden, 2 * keys + values) + _linear(hidden, heads)  # and write strengths
    decays = keys if of_channels else heads
    for width in (values, decays):
        through = rank and (width == values or of_channels)
        total += _linear(hidden, rank) + _linear(rank, width) if through else _linear(hidden, width)
    total += (2 * keys + values) * sizes["conv_kernel"] + heads + decays + sizes["value_head_dim"]
    return int(total + _linear(values, hidden))


def _ffn(model: dict[str, Any], width: int, tokens: int | None = None) -> int:
    hidden, bias = tokens or model["hidden_size"], model["biases"] in (True, "ffn")
    up = _linear(hidden, width, bias)
    return int(up * (2 if model["activation"] in GATED else 1) + _linear(width, hidden, bias))


def _experts(model: dict[str, Any]) -> int:
    moe = model["moe"]
    total = _linear(model["hidden_size"], moe["num_experts"], moe.get("router_bias", False))
    latent = moe.get("latent_size")
    total += moe["num_experts"] * _ffn(model, moe["expert_ffn_hidden_size"], latent)
    if latent:
        bias = model["biases"] in (True, "ffn")
        total += _linear(model["hidden_size"], latent, bias) + _linear(latent, model["hidden_size"], bias)
    if shared := moe.get("shared_expert_ffn_hidden_size"):
        total += _ffn(model, shared) + (model["hidden_size"] if moe.get("shared_expert_gate") else 0)
    return int(total)


def _encoder(model: dict[str, Any]) -> int:
    if "encoder" not in model:
        return 0
    hidden, encoder = model["hidden_size"], model["encoder"]
    total = encoder["token_types"] * hidden
    total += _linear(hidden, hidden, True) if encoder["pooler"] else 0
    total += _linear(hidden, hidden, True) + _norm(model) if encoder["mlm_head"] else 0
    return int(total + (_linear(hidden, 2, True) if encoder["next_sentence_head"] else 0))
