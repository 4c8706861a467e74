"""Families of config.json with keys that only they have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from predictor.formats.hugging_face.config import Config
from predictor.formats.hugging_face.layers import FULL, SLIDING, layers, num_layers, shortest
from predictor.formats.hugging_face.mixers import mamba2


def _falcon(config: Config) -> dict[str, Any]:
    """Return Falcon's layouts: of 7B (one key-value head, one norm), of 40B and 180B, and of Falcon-RW (ALiBi)."""
    is_new = config.switch("new_decoder_architecture")
    heads = config.whole("num_attention_heads")
    key_values = config.optional("num_key_value_heads") or heads if is_new else 1
    if not is_new and not config.switch("multi_query"):
        key_values = heads
    parallel = is_new or config.switch("parallel_attn")
    two_norms = is_new and config.optional("num_ln_in_parallel_attn") in (None, 2)
    found: dict[str, Any] = {
        "num_key_value_heads": key_values,
        "parallel_residual": parallel,
        "shared_input_norm": parallel and not two_norms,
    }
    if config.switch("alibi"):
        found |= {"positions": "alibi", "rotary_fraction": 0.0}
    return found


def _gpt_neo(config: Config) -> dict[str, Any]:
    """Return GPT-Neo's layers: global and local ones, as attention_types repeats them."""
    count, listed = num_layers(config), config.listed("attention_layers")
    if listed is None:
        types = config.listed("attention_types") or [[["global", "local"], count // 2]]
        listed = [name for names, repeats in types for _ in range(repeats) for name in names]
    if len(listed) != count or set(listed) - {"global", "local"}:
        raise config.error("attention_types", f"expected {count} layers, global or local")
    if "local" not in listed:
        return {}
    kinds = [SLIDING if name == "local" else FULL for name in listed]
    return {"sliding_window": config.whole("sliding_window"), "layer_types": shortest(kinds)}


def _falcon_h1(config: Config) -> dict[str, Any]:
    """Return Falcon-H1's Mamba-2, which runs beside attention in every layer."""
    inner, heads = config.optional("mamba_d_ssm"), config.whole("mamba_n_heads")
    sizes = mamba2(config)
    if inner is not None:
        sizes["head_dim"] = inner // heads
    return {"mamba2": sizes | {"gated_norm": config.switch("mamba_rms_norm")}, "mamba2_beside_attention": True}


def _gemma4(config: Config) -> dict[str, Any]:
    """Return Gemma 4's heads of layers that see all keys, and its per-layer inputs."""
    kinds = layers(config).get("layer_types", [FULL])
    count, changed = num_layers(config), config.value("per_layer_config") or {}
    full = {"head_dim": config.optional("global_head_dim"), "num_key_value_heads": config.optional("num_global_kv")}
    if changed:
        first = next(iter(changed.values()))
        same = all(sizes == first for sizes in changed.values()) and isinstance(first, dict)
        listed = {int(layer) for layer in changed} == {i for i in range(count) if kinds[i % len(kinds)] == FULL}
        if not (same and listed) or first.keys() - full.keys():
            raise config.error("per_layer_config", "only heads of all layers that see all keys may differ")
        full |= first
    given: dict[str, Any] = {key: value for key, value in full.items() if value is not None}
    if config.switch("attention_k_eq_v"):
        if SLIDING not in kinds:
            raise config.error("attention_k_eq_v", "it is modelled beside layers with a window only")
        given["shared_key_values"] = True
    found: dict[str, Any] = {"full_attention": given} if given and SLIDING in kinds else given
    if config.switch("enable_moe_block") != bool(config.optional("num_experts", 0)):
        raise config.error("enable_moe_block", "expected it exactly where num_experts says how many experts there are")
    if config.switch("enable_moe_block"):  # three norms more, and a scale of the router's input
        found["other_parameters"] = 4 * config.whole("hidden_size") * count
    if width := config.optional("hidden_size_per_layer_input", 0):
        found["per_layer_inputs"] = {"width": width, "vocab_size": config.whole("vocab_size_per_layer_input")}
    return found


def _mimo(config: Config) -> dict[str, Any]:
    """Return MiMo's heads: layers with a window have twice the key-value heads and sinks; values are narrower.

    Heads as wide as keys and values on average have as many parameters and FLOPs.
    """
    keys, values = config.whole("head_dim"), config.optional("v_head_dim") or config.whole("head_dim")
    if (keys + values) % 2:
        raise config.error("v_head_dim", "with head_dim it must be even")
    if keys != values:
        config.notes.append("v_head_dim: predicted with heads as wide as keys and values on average")
    kinds, heads = layers(config).get("layer_types", [FULL]), config.whole("num_attention_heads")
    every = [kinds[i % len(kinds)] for i in range(num_layers(config))]
    windowed, count = every.count(SLIDING), config.optional("num_key_value_heads") or heads
    published = {  # keys of the published file that its class does not read, and what the class makes of the others
        "swa_num_attention_heads": heads,
        "swa_num_key_value_heads": 2 * count,
        "swa_head_dim": keys,
        "swa_v_head_dim": values,
        "hybrid_layer_pattern": [int(kind == SLIDING) for kind in every],
    }
    for key, expected in published.items():
        if config.value(key) not in (None, expected):
            raise config.error(key, "layers with a window differ from the others in another way than is modelled")
    window = config.optional("sliding_window_size")  # keys before a query; sliding_window counts its own too
    return ({} if window is None else {"sliding_window": window + 1}) | {
        "head_dim": (keys + values) // 2,
        "num_key_value_heads": 2 * count,
        "full_attention": {"num_key_value_heads": count},
        "other_parameters": windowed * heads,
    }


def _glm_indexers(config: Config) -> dict[str, Any]:
    """Return GLM-5's layers: with an indexer of their own, or with the choice of the last one that has."""
    count, kinds = num_layers(config), {"full": FULL, "shared": "shared_index_attention", "F": FULL}
    kinds["S"] = kinds["shared"]
    listed = config.listed("indexer_types")
    pattern = config.value("index_topk_pattern")
    if listed is None and pattern is not None:
        listed = list(pattern)
    if listed is None:
        every = max(1, config.optional("index_topk_freq", 0) or 1)
        start = config.optional("index_skip_topk_offset", 0)
        start = 2 if start is None else start
        listed = ["full" if max(i - start + 1, 0) % every == 0 else "shared" for i in range(count)]
    if len(listed) != count or set(listed) - kinds.keys():
        raise config.error("indexer_types", f"expected {count} layers, full or shared")
    return {"layer_types": shortest([kinds[name] for name in listed])} if len(set(listed)) > 1 else {}


def _granite_hybrid(config: Config) -> dict[str, Any]:
    """Return Granite 4's positions, none or rotary ones, and its FFN, where it has only the shared expert."""
    kind = config.value("position_embedding_type")
    dense = {} if config.value("num_experts") else {"ffn_hidden_size": config.whole("shared_expert_intermediate_size")}
    if kind not in (None, "nope", "rope"):
        raise config.error("position_embedding_type", "only rope and nope are modelled")
    return dense | ({} if kind == "rope" else {"positions": "none", "rotary_fraction": 0.0})


def _helium(config: Config) -> dict[str, Any]:
    """Refuse heads that do not make up the hidden size: Helium's output projection is square."""
    if config.whole("head_dim") * config.whole("num_attention_heads") != config.whole("hidden_size"):
        raise config.error("head_dim", "times num_attention_heads it must be hidden_size")
    return {}


def _cpmant(config: Config) -> dict[str, Any]:
    """Return CPM-Ant's ends: segments and prompts beside the vocabulary, an output projection of its own."""
    hidden, segments = config.whole("hidden_size"), config.whole("segment_types")
    prompts = config.whole("prompt_types") * config.whole("prompt_length")
    buckets = (segments * segments + config.whole("position_bias_num_buckets")) * config.whole("num_attention_heads")
    extra = (prompts + segments) * hidden + buckets
    return {"tied_embeddings": False, "attention": "unfused", "other_parameters": extra}


def _diffllama(config: Config) -> dict[str, Any]:
    """Return the parameters that weigh the two attentions of a layer: four vectors as wide as a head."""
    width = config.optional("head_dim") or config.whole("hidden_size") // config.whole("num_attention_heads")
    return {"other_parameters": 4 * width * num_layers(config)}


def _doge(config: Config) -> dict[str, Any]:
    """Return the parameters of Doge's dynamic masks and residual scales."""
    config.fields.used |= {"num_experts", "num_experts_per_tok", "keep_window_size"}
    heads = config.optional("num_key_value_heads") or config.whole("num_attention_heads")
    width = config.optional("head_dim") or config.whole("hidden_size") // config.whole("num_attention_heads")
    per_layer = 2 * config.whole("hidden_size") + heads + heads * heads * width
    return {"other_parameters": per_layer * num_layers(config)}


def _dots3(config: Config) -> dict[str, Any]:
    """Return dots3's latent attention of layers with a window, whose sizes stand layer by layer."""
    kinds, count = layers(config).get("layer_types", [FULL]), num_layers(config)
    changed = config.value("per_layer_config") or {}
    windowed = {i for i in range(count) if kinds[i % len(kinds)] == SLIDING}
    sizes = next(iter(changed.values()), None)
    if not changed and not windowed:
        return {"other_parameters": count * config.whole("qk_rope_head_dim")}
    if {int(layer) for layer in changed} != windowed or any(given != sizes for given in changed.values()):
        raise config.error("per_layer_config", "expected the same sizes for all layers with a window")
    keys = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "num_attention_heads")
    if not isinstance(sizes, dict) or sizes.keys() - {*keys, "num_key_value_heads"}:
        raise config.error("per_layer_config", f"only {', '.join(keys)} may differ")
    own = {key: sizes.get(key, config.whole(key)) for key in keys}
    return {"sliding_latent_attention": own, "other_parameters": count * config.whole("qk_rope_head_dim")}


def _jetmoe(config: Config) -> dict[str, Any]:
    """Return JetMoE's experts of attention: a token meets as many as of its FFN, each with all key-value heads."""
    key_values, met = config.whole("num_key_value_heads"), config.whole("num_experts_per_tok")
    return {
        "num_attention_heads": key_values * met,
        "num_key_value_heads": key_values,
        "head_dim": config.whole("head_dim"),
        "attention_experts": config.whole("num_experts"),
    }


def _laguna(config: Config) -> dict[str, Any]:
    """Return Laguna's gate of heads; all layers must have as many heads."""
    heads = config.listed("num_attention_heads_per_layer")
    if heads is not None and set(heads) != {config.whole("num_attention_heads")}:
        raise config.error("num_attention_heads_per_layer", "layers of different numbers of heads are not modelled")
    gating = config.value("gating")
    if gating not in (True, "per-head"):
        raise config.error("gating", "only a gate of heads is modelled")
    return {"attention_head_gate": True}


def _lfm2(config: Config) -> dict[str, Any]:
    """Return the FFN's width that LFM2's class makes of intermediate_size: two thirds, scaled, rounded up."""
    width = config.whole("intermediate_size")
    if not config.switch("block_auto_adjust_ff_dim"):
        return {}
    step = config.whole("block_multiple_of")
    scale = 1.0 if config.value("block_ffn_dim_multiplier") is None else config.real("block_ffn_dim_multiplier")
    width = int(scale * int(2 * width / 3))
    return {"ffn_hidden_size": step * -(-width // step)}


def _recurrent_gemma(config: Config) -> dict[str, Any]:
    """Return the FFN's width: RecurrentGemma's intermediate_size counts both halves of its gate."""
    return {"ffn_hidden_size": config.whole("intermediate_size") // 2}


def _xlstm(config: Config) -> dict[str, Any]:
    """Return the FFN's width that xLSTM's class rounds up."""
    for key, same in (("embedding_dim", "hidden_size"), ("num_blocks", "num_hidden_layers")):
        if config.value(key) not in (None, config.whole(same)):
            raise config.error(key, f"it must be {same}, {config.whole(same)}")
    config.fields.used.add("chunk_size")
    step = config.whole("ffn_round_up_to_multiple_of")
    width = int(config.whole("hidden_size") * config.real("ffn_proj_factor"))
    if not width:
        raise config.error("ffn_proj_factor", "expected the width of the FFN over hidden_size")
    return {"ffn_hidden_size": step * -(-width // step)}


def _modernbert(config: Config) -> dict[str, Any]:
    """Return ModernBERT's window: half of local_attention, as the other half lies behind a token."""
    config.fields.used |= {"embedding_dropout", "classifier_dropout", "classifier_activation", "sliding_window"}
    return {"sliding_window": config.whole("local_attention", 2) // 2}


def _opt(config: Config) -> dict[str, Any]:
    """Refuse OPT-350M's embedding, which is narrower than the model."""
    width = config.optional("word_embed_proj_dim")
    if width not in (None, config.whole("hidden_size")):
        raise config.error("word_embed_proj_dim", "an embedding narrower than the model is not modelled")
    return {}


def _mpt(config: Config) -> dict[str, Any]:
    """Refuse attention of MPT that is not modelled."""
    attention = config.fields.section("attn_config")
    if attention.text("attn_type", "multihead_attention") != "multihead_attention":
        raise attention.error("attn_type", "only multihead_attention is modelled")
    for key in ("qk_ln", "prefix_lm"):
        if attention.switch(key):
            raise attention.error(key, "it is not modelled")
    return {}


SPECIAL: dict[str, Callable[[Config], dict[str, Any]]] = {
    "cpmant": _cpmant,
    "diffllama": _diffllama,
    "doge": _doge,
    "dots3": _dots3,
    "falcon": _falcon,
    "falcon_h1": _falcon_h1,
    "gemma4": _gemma4,
    "gpt_neo": _gpt_neo,
    "glm_indexers": _glm_indexers,
    "granite_hybrid": _granite_hybrid,
    "helium": _helium,
    "jetmoe": _jetmoe,
    "laguna": _laguna,
    "lfm2": _lfm2,
    "mimo": _mimo,
    "modernbert": _modernbert,
    "mpt": _mpt,
    "opt": _opt,
    "recurrent_gemma": _recurrent_gemma,
    "xlstm": _xlstm,
}
