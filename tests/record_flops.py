"""Record the FLOPs of the matrix products that transformers runs forward, one small model per kind of layer.

    python -m tests.record_flops      # needs torch and transformers

Products are counted by PyTorch while a model with random weights runs on a CPU: those with weights (``aten.mm``,
``aten.addmm``; ``aten.baddbmm`` of weights in blocks). Attention and recurrences are batched products, which kernels
on GPUs do in other ways; tests derive theirs by hand.
"""

from __future__ import annotations

import json
import warnings
from typing import Any

from tests.record_transformers import DATA, model_class

FLOPS = DATA / "transformers_flops.json"
LENGTH = 128
DENSE = {"hidden_size": 128, "intermediate_size": 256, "vocab_size": 512, "num_attention_heads": 8, "pad_token_id": 0}
GROUPED = DENSE | {"num_key_value_heads": 2, "num_hidden_layers": 4}
LATENT = DENSE | {
    "num_hidden_layers": 3, "num_key_value_heads": 8, "q_lora_rank": 48, "kv_lora_rank": 32, "qk_nope_head_dim": 24,
    "qk_rope_head_dim": 8, "v_head_dim": 16,
}  # fmt: skip
ROUTED = {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "n_group": 1, "topk_group": 1}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
MAMBA2 = {"mamba_n_heads": 8, "mamba_d_head": 32, "mamba_d_state": 16, "mamba_n_groups": 2, "mamba_chunk_size": 32}
DELTA = {
    "linear_num_key_heads": 4, "linear_num_value_heads": 8, "linear_key_head_dim": 16, "linear_value_head_dim": 24,
}  # fmt: skip
INDEXER = {"index_n_heads": 4, "index_head_dim": 16, "index_topk": 64}
BLOCKS = {
    "head_dim": 16, "mamba_num_heads": 8, "mamba_head_dim": 32, "ssm_state_size": 16, "n_groups": 2, "chunk_size": 32,
    "layers_block_type": ["mamba", "moe", "attention", "mlp"], "moe_shared_expert_intermediate_size": 96,
}  # fmt: skip
CASES: dict[str, dict[str, Any]] = {
    "llama": GROUPED,
    "gpt2": {"n_layer": 2, "n_embd": 128, "n_head": 8, "vocab_size": 512},
    "glm4": GROUPED | {"head_dim": 16},
    "gemma3_text": GROUPED | {"head_dim": 32, "sliding_window": 32, "num_hidden_layers": 6},
    "gemma4_text": GROUPED
    | {"num_hidden_layers": 6, "head_dim": 16, "global_head_dim": 32, "num_global_key_value_heads": 1}
    | {"attention_k_eq_v": True, "enable_moe_block": True, "top_k_experts": 2}
    | {"num_experts": 8, "moe_intermediate_size": 64, "hidden_size_per_layer_input": 0}
    | {"num_kv_shared_layers": 0, "vocab_size_per_layer_input": 512},
    "diffllama": GROUPED,
    "mimo_v2_flash": GROUPED | {"head_dim": 24, "v_head_dim": 16, "mlp_layer_types": ["dense"] * 4},
    "qwen3_moe": GROUPED | EXPERTS | {"head_dim": 16, "mlp_only_layers": [1]},
    "gpt_oss": GROUPED | {"head_dim": 16, "num_local_experts": 8, "num_experts_per_tok": 2},
    "ernie4_5_moe": GROUPED
    | {"moe_num_experts": 8, "moe_k": 2, "moe_intermediate_size": 64, "moe_num_shared_experts": 1},
    "deepseek_v2": LATENT | {"q_lora_rank": None, "num_experts_per_tok": 2, "first_k_dense_replace": 3},
    "deepseek_v3": LATENT | ROUTED | {"first_k_dense_replace": 1, "n_shared_experts": 2},
    "deepseek_v32": LATENT | INDEXER | {"first_k_dense_replace": 3},
    "glm_moe_dsa": LATENT | INDEXER | {"mlp_layer_types": ["dense"] * 3, "indexer_types": ["full", "shared", "shared"]},
    "minicpm3": LATENT,
    "bamba": GROUPED | MAMBA2 | {"attn_layer_indices": [1]},
    "falcon_h1": GROUPED | MAMBA2 | {"mamba_d_ssm": 256},
    "nemotron_h": GROUPED | ROUTED | BLOCKS,
    "qwen3_5_text": GROUPED | DELTA | {"head_dim": 16},
    "olmo_hybrid": GROUPED | DELTA | {"linear_num_key_heads": 8},
    "kimi_linear": LATENT
    | {"mlp_layer_types": ["dense"] * 3, "layer_types": ["linear_attention"] * 2 + ["full_attention"]}
    | {"linear_attn_config": {"num_heads": 8, "head_dim": 16, "full_attn_layers": [3], "kda_layers": [1, 2]}},
    "lfm2": GROUPED | {"layer_types": ["conv", "full_attention", "conv", "conv"]},
    "recurrent_gemma": DENSE | {"num_hidden_layers": 3, "num_key_value_heads": 1, "lru_width": 128},
    "minimax": GROUPED | {"head_dim": 16, "block_size": 32, "num_local_experts": 4},
    "rwkv": {"num_hidden_layers": 2, "hidden_size": 128, "vocab_size": 512, "intermediate_size": 256},
}


def products(model_type: str, keys: dict[str, Any]) -> int:
    """Return the FLOPs of the products with weights of one forward pass over LENGTH tokens."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    config = CONFIG_MAPPING[model_type].from_dict(dict(keys))
    plain = {"attn_implementation": "eager", "experts_implementation": "eager"}
    model = model_class(model_type)._from_config(config, **plain).float().eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.randint(0, 500, (1, LENGTH)), use_cache=False)
    counted = {str(name): flops for name, flops in counter.get_flop_counts()["Global"].items()}
    return int(sum(counted.get(f"aten.{name}", 0) for name in ("mm", "addmm", "baddbmm")))


def main() -> None:
    """Write the file: one line per kind of layer."""
    warnings.filterwarnings("ignore")
    found = {name: {"config": keys, "flops": products(name, keys)} for name, keys in CASES.items()}
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(value, sort_keys=True)}" for name, value in found.items())
    FLOPS.write_text("{\n" + lines + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
