"""The model that GPT-NeoX's keys describe, with its own defaults.

Source of names and defaults: EleutherAI/gpt-neox, megatron/neox_arguments/neox_args.py (NeoXArgsModel),
megatron/model/transformer.py (ParallelMLP, LLaMAParallelMLP of releases up to August 2024) and megatron/tokenizer.
"""

from __future__ import annotations

from math import ceil
from typing import Any

from predictor.core.schema.problems import Problems
from predictor.formats.gpt_neox.files import Keys

# A gate by its name; without a modelled one of its own it costs what the closest does.
GATED = {"swiglu": "swiglu", "geglu": "geglu", "reglu": "geglu", "glu": "geglu", "bilinear": "geglu"}
PLAIN = {"gelu": "gelu", "relu": "relu", "softsign": "gelu", "swish": "gelu", "mish": "gelu", "silu": "gelu"}
NORMS = ("layernorm", "rmsnorm", "non_parametric_layernorm", "te_layernorm", "te_rmsnorm")
LLAMA = "llama"  # mlp_type of releases up to August 2024
LLAMA_MULTIPLE = 256
EXACT, FLASH = "global", "flash"
# Vocabularies of tokenizers that have one: GPT-2's, bytes with padding.
TOKENIZERS = {"GPT2BPETokenizer": 50257, "CharLevelTokenizer": 512}
# And of those that are told by their file.
BY_FILE = {"20B_tokenizer": 50277, "cl100k_base": 100277}


def model_section(keys: Keys, notes: list[str], problems: Problems) -> dict[str, Any]:
    """Return the section ``model``, after recording what is wrong with it."""
    hidden = keys.whole("hidden_size")
    model: dict[str, Any] = {
        "num_layers": keys.whole("num_layers"),
        "hidden_size": hidden,
        "num_attention_heads": keys.whole("num_attention_heads"),
        "sequence_length": keys.whole("seq_length", keys.optional_whole("max_position_embeddings")),
        "tied_embeddings": not keys.switch("no_weight_tying"),
        "attention_dropout": _dropout(keys, "attention_dropout"),
        "hidden_dropout": _dropout(keys, "hidden_dropout"),
    }
    for part in (_ffn, _attention, _norms, _positions, _residual, vocabulary):
        model |= problems.part(dict[str, Any](), part, keys, notes)
    _whole_layers(keys, model["num_layers"])
    return model | problems.part(dict[str, Any](), _experts, keys, model)


def _dropout(keys: Keys, key: str) -> float:
    """Return a probability; zero unless said, as of releases from 2.0 on (0.1 before)."""
    return keys.real(key, 0.0)


def _ffn(keys: Keys, notes: list[str]) -> dict[str, Any]:
    """Return activation, width and biases: a gate takes a third of what is said, a multiple of mlp_multiple_of."""
    hidden, written = keys.whole("hidden_size"), keys.optional_whole("intermediate_size")
    factor, multiple = keys.real("expansion_factor", 4.0), keys.whole("mlp_multiple_of", 1)
    name = keys.text("activation", "gelu", (*PLAIN, *GATED))
    kind = keys.text("mlp_type", "regular", ("regular", LLAMA))
    biases = _biases(keys, keys.switch("use_bias_in_mlp", kind != LLAMA))
    if kind == LLAMA:
        width = written or ceil(int(8 * hidden / 3) / LLAMA_MULTIPLE) * LLAMA_MULTIPLE
        return {"activation": "swiglu", "ffn_hidden_size": width, **biases}
    width = written or int(factor * hidden)
    if name in GATED:
        width = ceil(int(width * 2 / 3) // 2 / multiple) * multiple
        notes.append(f"{keys.where}: of a gate ({name}) the FFN is {width} wide, a third of what is said (or of 4·h)")
    else:
        width = ceil(width / multiple) * multiple
    activation = (GATED | PLAIN)[name]
    if activation != name:
        notes.append(f"{keys.where}: activation {name} is predicted as {activation}")
    return {"activation": activation, "ffn_hidden_size": width, **biases}


def _biases(keys: Keys, of_ffn: bool) -> dict[str, Any]:
    of_attention = keys.switch("use_bias_in_attn_linear", True)
    return {"biases": of_ffn if of_ffn == of_attention else "ffn" if of_ffn else "attention"}


def attention_types(keys: Keys) -> set[str]:
    """Return the kinds of attention that layers have.

    Raises:
        ConfigError: it is no list of names, or of pairs of names and a number of layers.
    """
    written = keys.get("attention_config")
    entries = [EXACT] if written is None else written
    if not isinstance(entries, list):
        raise keys.error("attention_config", "expected a list such as [[[global], 12]]")
    names = [name for entry in entries for name in ([entry] if isinstance(entry, str) else _repeated(entry))]
    if not names or not all(isinstance(name, str) for name in names):
        raise keys.error("attention_config", "expected a list such as [[[global], 12]]")
    return set(names)


def _repeated(entry: Any) -> list[Any]:
    names = entry[0] if isinstance(entry, list) and entry else None
    return names if isinstance(names, list) else [names]


def _attention(keys: Keys, notes: list[str]) -> dict[str, Any]:
    """Return the kernels of attention, its heads and its window.

    Raises:
        ConfigError: layers have attention of several kinds, or one that is not modelled.
    """
    kinds = attention_types(keys)
    fuses = [keys.switch(f"scaled_{name}_softmax_fusion") for name in ("upper_triang_masked", "masked")]
    if others := sorted(kinds - {EXACT, FLASH}):
        raise keys.error(
            "attention_config", f"{', '.join(others)} is not modelled; write [[[flash], N]] to predict exact attention"
        )
    if len(kinds) > 1:
        raise keys.error("attention_config", "layers with different kernels are not modelled; name one of them")
    found: dict[str, Any] = {"attention": "fused_softmax" if any(fuses) else "unfused"}
    if FLASH in kinds:
        found["attention"] = "flash"
    if (heads := keys.optional_whole("num_kv_heads")) is not None:
        found["num_key_value_heads"] = heads
    window = keys.optional_whole("sliding_window_width")
    if window is not None and FLASH in kinds:
        found["sliding_window"] = window
    if keys.switch("use_qk_layernorm"):
        found["qk_norm"] = "whole"  # one norm over the heads of a rank
    return found


def _norms(keys: Keys, notes: list[str]) -> dict[str, Any]:
    name = keys.text("norm", "layernorm", NORMS)
    has_biases = keys.switch("use_bias_in_norms", True)
    if name.endswith("rmsnorm"):
        fused = keys.switch("rmsnorm_fusion") or name.startswith("te_")
        return {"normalization": "fused_rms_norm" if fused else "rms_norm"}
    if name.startswith("non_parametric"):
        return {"normalization": "layer_norm", "norm_weights": False, "norm_biases": False}
    return {"normalization": "layer_norm"} | ({} if has_biases else {"norm_biases": False})


def _positions(keys: Keys, notes: list[str]) -> dict[str, Any]:
    """Return how tokens know where they stand.

    Raises:
        ConfigError: by relative positions, which are not modelled.
    """
    kind = keys.text("pos_emb", "learned", ("learned", "rotary", "sinusoidal", "rpe", "alibi", "none"))
    share, fuses = keys.real("rotary_pct", 1.0), keys.switch("rope_fusion")
    longest = keys.optional_whole("max_position_embeddings")
    if kind == "rotary":
        return {"rotary_fraction": share} | ({"fused_rope": True} if fuses else {})
    if kind == "rpe":
        raise keys.error("pos_emb", "relative positions are not modelled; write learned, rotary, alibi or none")
    if kind == "learned":
        return {"rotary_fraction": 0.0} | ({} if longest is None else {"num_position_embeddings": longest})
    if kind == "sinusoidal":
        notes.append(f"{keys.where}: pos_emb sinusoidal is predicted without the table that is added")
    return {"positions": "alibi" if kind == "alibi" else "none", "rotary_fraction": 0.0}


def _residual(keys: Keys, notes: list[str]) -> dict[str, Any]:
    """Return the residual path and its fused kernels."""
    beside, shares = keys.switch("gpt_j_residual"), keys.switch("gpt_j_tied")
    fusions = {name: keys.switch(name) for name in ("bias_gelu_fusion", "bias_dropout_fusion")}
    if len(set(fusions.values())) > 1:
        on = next(name for name, is_on in fusions.items() if is_on)
        notes.append(f"{keys.where}: {on} alone is on: side kernels are predicted unfused")
    found: dict[str, Any] = {"fused_side_kernels": all(fusions.values())}
    return found | ({"parallel_residual": True} if beside else {}) | ({"shared_input_norm": True} if shares else {})


def vocabulary(keys: Keys, notes: list[str]) -> dict[str, Any]:
    """Return the vocabulary where the tokenizer says it; padded to a multiple of that of every rank."""
    multiple = keys.whole("make_vocab_size_divisible_by", 128) * ranks(keys, "model_parallel_size")
    file = str(keys.get("vocab_file") or "")
    kind = keys.text("tokenizer_type", "")
    keys.used.add("merge_file")
    if (padded := keys.optional_whole("padded_vocab_size")) is not None:
        return {"vocab_size": padded}
    named = next((size for name, size in BY_FILE.items() if name in file), None)
    size = named or TOKENIZERS.get(kind or "GPT2BPETokenizer")
    if size is None:
        return {}
    if not kind and named is None:
        notes.append(f"{keys.where}: tokenizer_type is not said; predicted with its default, GPT-2's vocabulary")
    return {"vocab_size": ceil(size / multiple) * multiple}


def ranks(keys: Keys, key: str) -> int:
    """Return a degree; 0 means one, as 1 does."""
    return max(1, keys.whole(key, 1, least=0))


def _whole_layers(keys: Keys, count: int) -> None:
    unique = keys.optional_whole("num_unique_layers")
    if unique is not None and unique != count:
        keys.broken(keys.error("num_unique_layers", "layers that share their weights are not modelled; remove it"))


def _experts(keys: Keys, model: dict[str, Any]) -> dict[str, Any]:
    """Return the experts: of every n-th layer, counted from the first.

    Raises:
        ConfigError: tensor-parallel ranks split the model, whose experts GPT-NeoX then lays out by rules of its own.
    """
    older = keys.optional_whole("num_experts")
    count = keys.optional_whole("moe_num_experts") or older or 1
    is_older = keys.has("expert_interval") or older is not None
    period = keys.whole("moe_expert_interval", keys.whole("expert_interval", 2 if is_older else 1))
    top_k = keys.whole("moe_top_k", 1)
    drops = keys.switch("moe_token_dropping") and keys.text("moe_type", "megablocks") == "deepspeed"
    capacity = keys.real("moe_train_capacity_factor", 1.0)
    keys.used |= {"moe_type", "moe_expert_parallel_size"}  # the latter is the layout's
    if count == 1:
        return {}
    if ranks(keys, "model_parallel_size") > 1:
        raise keys.error(
            "model_parallel_size", "its split of experts is not modelled; write 1 to predict experts without"
        )
    layers = model["num_layers"]
    experts = {"num_experts": count, "experts_per_token": top_k, "expert_ffn_hidden_size": model["ffn_hidden_size"]}
    if drops:
        experts["capacity_factor"] = capacity
    if period == 1:
        return {"moe": experts}
    kinds = ["dense" if layer % period else "experts" for layer in range(layers)]
    return {"moe": experts, "ffn_types": kinds}
