"""The short names of the documented API and of its measurement tables, next to the names used inside."""

from __future__ import annotations

OPERATORS_BY_SHORT_NAME = {
    "embedding": "embedding",
    "RMSlayernorm": "rms_norm",
    "layernorm": "layer_norm",
    "linear1": "qkv_projection",
    "linear2": "attention_output",
    "linear3": "ffn_up",
    "linear4": "ffn_down",
    "linear_final": "lm_head",
    "RoPE": "rope",
    "flash_atten": "flash_attention",
    "baddbmm": "attention_scores",
    "fillmask": "attention_mask",
    "softmax": "softmax",
    "ScaledUpperTriangMaskedSoftmax": "causal_softmax",
    "bmm": "attention_values",
    "gelu": "gelu",
    "res_add": "residual_add",
    "parallel_cross_entropy_128": "cross_entropy",
    "firstStage_optimizer": "optimizer_step",
    "middleStage_optimizer": "optimizer_step",
    "lastStage_optimizer": "optimizer_step",
    "optimizer": "optimizer_step_looped",
}
