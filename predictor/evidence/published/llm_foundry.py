"""MosaicML llm-foundry on Composer's FSDP: MPT models on A100s and H100s.

Sources: llm-foundry, scripts/train/benchmarking (sweep and README: ``attn_impl: triton``), scripts/train/yamls/pretrain
and llmfoundry/models/mpt: LayerNorm, learned positions, biases, GELU, tied embeddings, torch's cross entropy. Composer,
composer/trainer/mosaic_fsdp_utils.py: "PURE" gathers and reduces in 16 bits; "DEFAULT" gathers in 16 bits since pull
request 2047 (March 2023) and reduces in fp32 since pull request 2628 (October 2023). Of the tables of the README only
that of 128 GPUs and more is later than the second; its sweep.py names the attention of each model.
"""

from __future__ import annotations

from typing import Any

from predictor.evidence.published.row import Row, batch, dense_model, layout
from predictor.evidence.published.systems import machine

LARGE_SCALE = "Large Scale"
TRITON_AT_LARGE_SCALE = ("13b", "30b")  # sweep.py; the other models ran FlashAttention 2


def _attention_kernel(row: Row) -> str:
    if row.has("system", LARGE_SCALE) and not row.has("model", *TRITON_AT_LARGE_SCALE):
        return "flash_2"
    return "triton"


def configuration(row: Row) -> dict[str, Any]:
    """Return the configuration of a row."""
    fp8 = row.has("precision", "fp8")
    keeps_weights = row.has("zero_fsdp", "SHARD_GRAD_OP")
    reduces_in_fp32 = row.has("zero_fsdp", "DEFAULT") and row.has("system", LARGE_SCALE)
    training = batch(
        row,
        precision="bf16",
        recompute="full" if row.has("recompute", "full") else "none",
        recompute_stops_early=True,  # activation_checkpointing_reentrant: false
        attention_kernel=_attention_kernel(row),
        framework="llm-foundry",
    )
    return {
        **machine(row),
        "model": dense_model(
            row,
            normalization="layer_norm",
            rotary_fraction=0.0,
            biases=True,
            tied_embeddings=True,
            loss="fused",  # MPT's loss_fn is fused_crossentropy by default
        ),
        "parallelism": layout(
            row,
            zero_stage=3,
            reshard_after_forward=not keeps_weights,
            overlap_gradient_reduction=True,
            overlap_parameter_gather=True,
            fp32_parameters=True,
            fp32_gradients=reduces_in_fp32,
            gather_precision="bf16",
        ),
        "training": {**training, "gemm_recipe": "fp8_delayed"} if fp8 else training,
    }
