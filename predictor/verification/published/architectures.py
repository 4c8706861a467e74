"""Model sections of the architectures that NeMo, Megatron-Bridge and MLPerf train, by the name in a row.

Sizes are columns; switches are those of the models' public configurations. Kernels are Transformer Engine's: norms,
rotations and the loss are one kernel each (Megatron-LM: apply_rope_fusion, cross_entropy_loss_fusion).
"""

from __future__ import annotations

from typing import Any

from predictor.verification.published.row import Row, UnexpressedError, dense_model

LLAMA: dict[str, Any] = {"normalization": "fused_rms_norm", "activation": "swiglu"}
GPT3: dict[str, Any] = {
    "normalization": "layer_norm",
    "rotary_fraction": 0.0,
    "biases": True,
    "tied_embeddings": True,
}
# Nemotron-4 (arXiv:2402.16819): squared ReLU, so no gate; rotary positions on half of a head; LayerNorm; no biases.
NEMOTRON4: dict[str, Any] = {"normalization": "layer_norm", "rotary_fraction": 0.5}
# YaRN scales the rotation, which Transformer Engine's kernel does not: Megatron-LM, pull request 2038.
GPT_OSS: dict[str, Any] = {**LLAMA, "biases": True, "fused_rope": False}
# Both DeepSeek-V2 and V3 have latents of these widths: arXiv:2405.04434, section 3.1.2; arXiv:2412.19437, section 4.2.
DEEPSEEK: dict[str, Any] = {
    **LLAMA,
    "latent_attention": {
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
    },
}
BY_NAME: dict[str, dict[str, Any]] = {
    "nemotron4": NEMOTRON4,
    "nemotron-4": NEMOTRON4,
    "llama": LLAMA,
    "mixtral": LLAMA,
    "grok": {"normalization": "fused_rms_norm", "activation": "geglu"},
    "qwen3": {**LLAMA, "qk_norm": True},
    "deepseekv2": DEEPSEEK,
    "deepseekv3": DEEPSEEK,
    "gpt oss": GPT_OSS,
    "gpt-oss": GPT_OSS,
    "gpt3": GPT3,
    "gpt": GPT3,
}
# Parts of a model that no configuration has.
UNKNOWN_PARTS = {
    "mla": "the widths of its latent attention are not stated",
    "hybrid": "hybrid models with Mamba layers are not modelled",
    "mtp": "multi-token prediction is not modelled",
}


def check_architecture(row: Row) -> None:
    """Refuse architectures that no configuration expresses.

    Raises:
        UnexpressedError: the row's is one of them.
    """
    is_known = row.has("model", "deepseekv2", "deepseekv3")
    if row.has("mla", "yes") and not is_known:
        raise UnexpressedError(UNKNOWN_PARTS["mla"])
    pattern = row.text("layer_pattern").lower()
    if "hybrid" in pattern or "m-m" in pattern or "meme" in pattern:
        raise UnexpressedError(UNKNOWN_PARTS["hybrid"])
    if is_known:
        return
    if "mtp" in pattern or "m" in row.text("pp_layout").partition(" ")[0].lower().replace("emb", ""):
        raise UnexpressedError(UNKNOWN_PARTS["mtp"])


def _further_tokens(row: Row) -> dict[str, Any]:
    """Return the modules that predict further tokens: one in Megatron-Bridge's recipes, unless a row says none.

    Source: Megatron-Bridge, src/megatron/bridge/recipes/deepseek/deepseek_v3.py, mtp_num_layers.

    Raises:
        UnexpressedError: the row does not say it, and its recipe is not known.
    """
    if row.has("notes", "w/o MTP") or row.has("model", "cut to"):
        return {}
    if not row.has("framework", "Megatron-Bridge v", "Megatron-Bridge r"):
        raise UnexpressedError("whether the run predicts further tokens (MTP) is not stated")
    return {"num_mtp_layers": 1}


def _experts(row: Row) -> dict[str, Any]:
    moe: dict[str, Any] = {
        "num_experts": row.whole("moe_experts"),
        "experts_per_token": row.whole("moe_topk"),
        "expert_ffn_hidden_size": row.whole("moe_ffn"),
        "shared_expert_ffn_hidden_size": row.whole("shared_expert_ffn", 0),
        "num_dense_layers": row.whole("moe_dense_layers", 0),
    }
    if row.has("routing", "capacity"):
        moe["capacity_factor"] = 1.0
    if row.has("model", "gpt oss", "gpt-oss"):
        moe["activation_clamp"] = 7.0  # swiglu_limit of its configuration
    return moe


def model_of(row: Row, **switches: Any) -> dict[str, Any]:
    """Return the model section of a row.

    Raises:
        UnexpressedError: the architecture is not known, or a size is not stated.
    """
    check_architecture(row)
    name = row.text("model").lower()
    known = next((given for word, given in BY_NAME.items() if word in name), None)
    if known is None:
        raise UnexpressedError(f"the architecture of {row.text('model')} is not known")
    fused = {"fused_side_kernels": True, "fused_rope": True, "loss": "fused"}
    model = {**dense_model(row, **{**fused, **known}), **switches}
    if "latent_attention" in model:
        del model["head_dim"]
        model |= _further_tokens(row)
    if row.text("moe_experts"):
        model["moe"] = _experts(row)
    if row.has("layer_pattern", "sliding window 128 on every 2nd layer"):
        model |= {"sliding_window": 128, "sliding_window_layers": row.whole("layers") // 2}
    return model
