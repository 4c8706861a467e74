"""Model sections of the architectures that NeMo, Megatron-Bridge and MLPerf train, by the name in a row.

Sizes are columns; switches are those of the models' public configurations. Kernels are Transformer Engine's: norms,
rotations and the loss are one kernel each (Megatron-LM: apply_rope_fusion, cross_entropy_loss_fusion).
"""

from __future__ import annotations

from typing import Any

from predictor.evidence.published.patterns import LATENT_EXPERTS, hybrid, latent_attention, mtp_layers
from predictor.evidence.published.row import Row, UnexpressedError, dense_model

LLAMA: dict[str, Any] = {"normalization": "fused_rms_norm", "activation": "swiglu"}
GPT3: dict[str, Any] = {
    "normalization": "layer_norm",
    "rotary_fraction": 0.0,
    "biases": True,
    "tied_embeddings": True,
}
# Nemotron-4 (arXiv:2402.16819): squared ReLU, so no gate; rotary positions on half of a head; LayerNorm; no biases.
NEMOTRON4: dict[str, Any] = {"normalization": "layer_norm", "rotary_fraction": 0.5, "activation": "squared_relu"}
# YaRN scales the rotation, which Transformer Engine's kernel does not: Megatron-LM, pull request 2038.
GPT_OSS: dict[str, Any] = {**LLAMA, "biases": True, "fused_rope": False, "attention_sinks": True}
# Nemotron-H (arXiv:2504.03624, section 2.1) and Nemotron 3: squared ReLU, RMSNorm, no positions, no biases.
NEMOTRON_H: dict[str, Any] = {"normalization": "fused_rms_norm", "activation": "squared_relu", "positions": "none"}
BY_NAME: dict[str, dict[str, Any]] = {
    "nemotron4": NEMOTRON4,
    "nemotron-4": NEMOTRON4,
    "llama": LLAMA,
    "mixtral": LLAMA,
    "grok": {"normalization": "fused_rms_norm", "activation": "geglu"},
    "qwen3": {**LLAMA, "qk_norm": True},
    "gpt oss": GPT_OSS,
    "gpt-oss": GPT_OSS,
    "deepseek": LLAMA,
    "kimi": LLAMA,
    "nemotron_3": NEMOTRON_H,
    "gpt3": GPT3,
    "gpt": GPT3,
}


def _experts(row: Row) -> dict[str, Any]:
    moe: dict[str, Any] = {
        "num_experts": row.whole("moe_experts"),
        "experts_per_token": row.whole("moe_topk"),
        "expert_ffn_hidden_size": row.whole("moe_ffn"),
        "shared_expert_ffn_hidden_size": row.whole("shared_expert_ffn", 0),
        "num_dense_layers": row.whole("moe_dense_layers", 0),
    }
    if latent := LATENT_EXPERTS.search(row.text("layer_pattern")):
        moe["latent_size"] = int(latent[1])
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
    name = row.text("model").lower()
    known = next((given for word, given in BY_NAME.items() if word in name), None)
    if known is None:
        raise UnexpressedError(f"the architecture of {row.text('model')} is not known")
    fused = {"fused_side_kernels": True, "fused_rope": True, "loss": "fused"}
    model = {**dense_model(row, **{**fused, **known}), **switches}
    if row.text("moe_experts"):
        model["moe"] = _experts(row)
    model |= latent_attention(row) | hybrid(row)
    if "latent_attention" in model:
        model = {key: value for key, value in model.items() if key not in ("head_dim", "num_key_value_heads")}
    if mtp_layers(row):
        model["num_mtp_layers"] = mtp_layers(row)
    if row.has("layer_pattern", "sliding window 128 on every 2nd layer"):
        model |= {"sliding_window": 128, "sliding_window_layers": row.whole("layers") // 2}
    return model
