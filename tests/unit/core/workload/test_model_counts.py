"""Parameters of published models, from the model section alone; counts of transformers 5.23 on the meta device."""

from __future__ import annotations

from typing import Any

import pytest

from predictor.core.plan.model import transformer
from predictor.core.schema.model_section import ModelSection

LLAMA = {"normalization": "rms_norm", "activation": "swiglu", "sequence_length": 4096}
MLA = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
DEEPSEEK_V3 = {
    **LLAMA,
    "num_layers": 61, "hidden_size": 7168, "num_attention_heads": 128, "ffn_hidden_size": 18432, "vocab_size": 129280,
    "latent_attention": {**MLA, "q_lora_rank": 1536},
    "moe": {
        "num_experts": 256, "experts_per_token": 8, "expert_ffn_hidden_size": 2048,
        "shared_expert_ffn_hidden_size": 2048, "num_dense_layers": 3,
    },
}  # fmt: skip
GPT_OSS_120B = {
    **LLAMA,
    "num_layers": 36, "hidden_size": 2880, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64,
    "vocab_size": 201088, "biases": True, "attention_sinks": True, "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"],
    "moe": {"num_experts": 128, "experts_per_token": 4, "expert_ffn_hidden_size": 2880, "router_bias": True},
}  # fmt: skip
QWEN3_NEXT = {
    **LLAMA,
    "num_layers": 48, "hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256,
    "vocab_size": 151936, "qk_norm": True, "attention_output_gate": True, "rotary_fraction": 0.25,
    "layer_types": ["gated_delta", "gated_delta", "gated_delta", "full_attention"],
    "gated_delta": {"num_key_heads": 16, "num_value_heads": 32, "key_head_dim": 128, "value_head_dim": 128},
    "moe": {
        "num_experts": 512, "experts_per_token": 10, "expert_ffn_hidden_size": 512,
        "shared_expert_ffn_hidden_size": 512, "shared_expert_gate": True,
    },
}  # fmt: skip
BAMBA_9B = {
    **LLAMA,
    "num_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8,
    "ffn_hidden_size": 14336, "vocab_size": 128000,
    "layer_types": ["mamba2"],
    "mamba2": {"num_heads": 128, "head_dim": 64, "state_size": 256, "num_groups": 1},
}  # fmt: skip
OLMO2_7B = {
    **LLAMA,
    "num_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "ffn_hidden_size": 11008, "vocab_size": 50304,
    "qk_norm": "whole",
}  # fmt: skip
FALCON_7B = {
    "num_layers": 32, "hidden_size": 4544, "num_attention_heads": 71, "num_key_value_heads": 1, "vocab_size": 65024,
    "sequence_length": 2048, "normalization": "layer_norm", "parallel_residual": True, "shared_input_norm": True,
    "tied_embeddings": True,
}  # fmt: skip
BLOOM = {
    "num_layers": 2, "hidden_size": 64, "num_attention_heads": 8, "vocab_size": 250880, "sequence_length": 2048,
    "normalization": "layer_norm", "biases": True, "tied_embeddings": True, "positions": "alibi",
    "embedding_norm": True,
}  # fmt: skip
GPT_J = {
    "num_layers": 28, "hidden_size": 4096, "num_attention_heads": 16, "vocab_size": 50400, "sequence_length": 2048,
    "normalization": "layer_norm", "parallel_residual": True, "shared_input_norm": True, "biases": "ffn",
    "rotary_fraction": 0.25, "lm_head_bias": True,
}  # fmt: skip
BERT = {
    "num_layers": 12, "hidden_size": 768, "num_attention_heads": 12, "vocab_size": 30522, "sequence_length": 512,
    "normalization": "layer_norm", "biases": True, "tied_embeddings": True, "positions": "learned", "causal": False,
    "embedding_norm": True, "final_norm": False,
}  # fmt: skip
DEEPSEEK_V32_MLA = {**MLA, "q_lora_rank": 1536, "indexer": {"num_heads": 64, "head_dim": 128, "top_k": 2048}}
COUNTS: list[tuple[dict[str, Any], int]] = [
    (DEEPSEEK_V3, 671026404352),
    (DEEPSEEK_V3 | {"latent_attention": DEEPSEEK_V32_MLA}, 671877929216),
    (GPT_OSS_120B, 116829156672),
    (QWEN3_NEXT, 79674391296),
    (BAMBA_9B, 9992765440),
    (OLMO2_7B, 6888624128),
    (FALCON_7B, 6921720704),
    (BLOOM, 16156544),
    (GPT_J, 6050882784),
    (BERT | {"encoder": {"pooler": True, "mlm_head": False}}, 109482240),
    (BERT | {"encoder": {"pooler": False, "mlm_head": True}, "lm_head_bias": True}, 109514298),
    (BERT | {"encoder": {"next_sentence_head": True}, "lm_head_bias": True}, 110106428),
]


@pytest.mark.parametrize(("section", "parameters"), COUNTS)
def test_parameters_are_those_of_the_published_model(section: dict[str, Any], parameters: int) -> None:
    assert transformer(ModelSection.model_validate(section)).num_parameters() == parameters
