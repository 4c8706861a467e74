"""Verification cards of Megatron-Bridge: runs of recipes that nobody tuned ("has not been performance-tuned").

Sources. NVIDIA-NeMo/Megatron-Bridge, examples/model_verification_cards (commands and layouts of the runs, adapters) and
src/megatron/bridge/recipes (gpt_oss, moonlight, nemotronh, qwen: layouts, optimizers, kernels). A card's command names
a recipe and overrides it; the row's columns hold overrides of degrees, batches and lengths, what is empty or 1 in them
is the recipe's. Batches that no column has follow from the throughput. Stated assumptions: Tulu 3 packs into sequences
as for Moonlight (its card: 21.55 samples in 8,192 tokens); adapters that a card does not list are those of attention.
"""

from __future__ import annotations

from typing import Any

from predictor.core.base.errors import ConfigError
from predictor.core.schema.presets import preset
from predictor.core.workload.frameworks import MEGATRON_LM
from predictor.evidence.published.patterns import HYBRID, MAMBA_CHUNK
from predictor.evidence.published.row import Row, UnexpressedError
from predictor.evidence.published.systems import machine

PACKED_DOCUMENT = round(8192 / 21.55)  # tokens of a sample of Tulu 3, which stays in its own attention
FUSED: dict[str, Any] = {
    "normalization": "fused_rms_norm",
    "fused_side_kernels": True,
    "fused_rope": True,
    "loss": "fused",
}
MOONLIGHT: dict[str, Any] = {
    "num_layers": 27,
    "hidden_size": 2048,
    "num_attention_heads": 16,
    "ffn_hidden_size": 11264,
    "vocab_size": 163842,
    "activation": "swiglu",
    "latent_attention": {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128},
    "moe": {
        "num_experts": 64,
        "experts_per_token": 6,
        "expert_ffn_hidden_size": 1408,
        "shared_expert_ffn_hidden_size": 2816,
        "num_dense_layers": 1,
        "router_bias": True,
    },
}
NANO_4B = [HYBRID[letter] for letter in "M-M-M-MM-M-M*-M-M*-M-M-M*-M-M-MM*-MMM-M-M-"]
NEMOTRON_3_NANO_4B: dict[str, Any] = {
    "num_layers": len(NANO_4B),
    "hidden_size": 3136,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "ffn_hidden_size": 12544,
    "vocab_size": 131072,
    "activation": "squared_relu",
    "positions": "none",
    "layer_types": [mixer for mixer, _ in NANO_4B],
    "ffn_types": [ffn for _, ffn in NANO_4B],
    "mamba2": {"num_heads": 96, "head_dim": 80, "state_size": 128, "num_groups": 8, "chunk_size": MAMBA_CHUNK},
    "fused_rope": False,
    "loss": "fused_native",
}
# Models without a preset, and what recipes change of one; other cards name presets.
MODELS: dict[str, dict[str, Any]] = {
    "moonlight-16b-a3b": MOONLIGHT,
    "nemotron-3-nano-4b": NEMOTRON_3_NANO_4B,
    "gpt-oss-20b": {"fused_rope": False, "loss": "fused_native"},  # YaRN
    "gpt-oss-120b": {"fused_rope": False, "loss": "fused_native"},
}
OF_LATENT_ATTENTION = ["q_up", "kv_down", "kv_up", "attention_output"]
OF_ATTENTION = ["qkv", "attention_output"]
RANK = 8
IN_HALF = {"fp32_gradients": False}
# What recipes say by the beginning of their names.
PARALLELISM: dict[str, dict[str, Any]] = {
    "gpt_oss_20b_pretrain_16gpu": {
        "tensor_parallel_size": 2,
        "pipeline_parallel_size": 4,
        "expert_parallel_size": 4,
    },
    "gpt_oss_20b_sft_8gpu": {"expert_parallel_size": 8},
    "moonlight_16b_pretrain": {"expert_dispatcher": "hybridep", **IN_HALF},
    "qwen3_30b_a3b_pretrain_16gpu": {"expert_dispatcher": "hybridep", **IN_HALF},
    "qwen3_30b_a3b_peft": {"expert_dispatcher": "deepep"},
    "nemotron_3_nano_4b_pretrain": IN_HALF,
}
TRAINING: dict[str, dict[str, Any]] = {
    "moonlight_16b_pretrain": {"recompute": "selective", "optimizer_state_bytes": 8.0},  # moments in bf16
    "qwen3_30b_a3b_pretrain_16gpu": {"cuda_graphs": ["moe_router", "moe_preprocess"]},
}


def _of_recipe(row: Row, known: dict[str, dict[str, Any]]) -> dict[str, Any]:
    name = row.text("recipe_ref")
    return next((dict(given) for beginning, given in known.items() if name.startswith(beginning)), {})


def model_of(row: Row) -> dict[str, Any]:
    """Return the model section of a card.

    Raises:
        UnexpressedError: its model has no preset.
    """
    name, own = row.text("model"), MODELS.get(row.text("model"), {})
    if "num_layers" not in own:
        try:
            own = preset(name) | own
        except ConfigError:
            raise UnexpressedError(f"the sizes of {name} are not known") from None
    return {**FUSED, **own, "sequence_length": row.whole("seq")} | ({} if "biases" in own else {"biases": False})


def global_batch(row: Row) -> int:
    """Return the samples of a step: of their column, else as many as make its throughput."""
    if row.text("global_batch"):
        return row.whole("global_batch")
    tokens = row.number("tokens_per_s_per_gpu") * row.number("derived_step_time_s") * row.whole("n_gpus")
    return round(tokens / row.whole("seq"))


def _parallelism(row: Row, has_experts: bool) -> dict[str, Any]:
    degrees = {
        "tensor_parallel_size": row.whole("tp", 1),
        "pipeline_parallel_size": row.whole("pp", 1),
        "context_parallel_size": row.whole("cp", 1),
        "expert_parallel_size": row.whole("ep", 1),
    }
    given = _of_recipe(row, PARALLELISM)
    of_recipe = {key: given.pop(key, 1) for key in degrees}
    own = {key: size if size > 1 else of_recipe[key] for key, size in degrees.items()}
    tp, pretrains = own["tensor_parallel_size"], row.has("task", "pretrain")
    ranks, rest = divmod(row.whole("n_gpus"), tp * own["pipeline_parallel_size"] * own["context_parallel_size"])
    if rest or not ranks:
        raise UnexpressedError("its GPUs are no multiple of the layout")
    split = {"expert_tensor_parallel_size": 1} if has_experts and own["expert_parallel_size"] > 1 and tp > 1 else {}
    return {
        **own,
        **split,
        "data_parallel_size": ranks,
        "gpus_per_node": row.whole("gpus_per_node"),
        "zero_stage": 1,
        "gradient_reduction": "reduce_scatter",
        "overlap_gradient_reduction": pretrains,
        "overlap_parameter_gather": pretrains,
        "overlap_tensor_parallel": tp > 1,
        "sequence_parallel": tp > 1,
        "fp32_gradients": True,
        "gradient_bucket_elements": MEGATRON_LM.bucket_elements(ranks),
        **given,
    }


def configuration(row: Row) -> dict[str, Any]:
    """Return the configuration of a card's run.

    Raises:
        UnexpressedError: its model is not known, or replicas do not share its batch.
    """
    model = model_of(row)
    parallelism = _parallelism(row, "moe" in model)
    micro = row.whole("micro_batch", 1)
    count, rest = divmod(global_batch(row), micro * parallelism["data_parallel_size"])
    if rest or not count:
        raise UnexpressedError("replicas do not share its global batch evenly")
    training: dict[str, Any] = {
        "micro_batch_size": micro,
        "num_micro_batches": count,
        "precision": "bf16",
        "fused_gradient_accumulation": True,
        "framework": "megatron-bridge",
        **_of_recipe(row, TRAINING),
    }
    if not row.has("task", "pretrain"):
        training["document_tokens"] = min(PACKED_DOCUMENT, row.whole("seq"))
    if row.has("task", "peft", "lora"):
        targets = OF_LATENT_ATTENTION if "latent_attention" in model else OF_ATTENTION
        training["lora"] = {"rank": RANK, "targets": targets}
    return {**machine(row), "model": model, "parallelism": parallelism, "training": training}


def groups(row: Row) -> tuple[str, ...]:
    """Return the group of a card: by what its model is made of and what of it trains."""
    kind = "LoRA" if row.has("task", "peft", "lora") else "experts" if "moe" in model_of(row) else "dense"
    return (f"Megatron-Bridge's cards, {kind}, {row.text('precision')}",)
