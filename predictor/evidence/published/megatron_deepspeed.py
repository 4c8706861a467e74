"""Megatron-DeepSpeed: vTrain's validation runs, and the preparatory runs of BLOOM (bigscience's fork)."""

from __future__ import annotations

import re
from typing import Any

from predictor.evidence.published.row import Row, UnexpressedError, batch, dense_model, layout
from predictor.evidence.published.systems import machine

# Megatron's defaults: learned positions, biases, dropout 0.1, tied embeddings, fused bias, dropout, residual and GELU.
DEFAULTS: dict[str, Any] = {
    "normalization": "layer_norm",
    "attention": "fused_softmax",
    "rotary_fraction": 0.0,
    "biases": True,
    "attention_dropout": 0.1,
    "hidden_dropout": 0.1,
    "tied_embeddings": True,
    "fused_side_kernels": True,
}


def vtrain(row: Row) -> dict[str, Any]:
    """Return the configuration of a validation run of vTrain: eight A100s on one board meet in NVSwitches."""
    return {
        **machine(row),
        "model": dense_model(row, **DEFAULTS),
        "parallelism": layout(row, layers_per_stage="uniform", zero_stage=0),
        "training": batch(row, precision="fp16", recompute="full", framework="megatron-deepspeed"),
    }


# BLOOM. bigscience, train/tr11-176B-ml/chronicles-prequel.md; tr11-176B-ml.slurm: a vocabulary padded to 250,880, no
# options for dropout (so Megatron's 0.1), CUDA_LAUNCH_BLOCKING=1, --checkpoint-activations.
BLOOM_VOCABULARY = 250_880
# The document, "Rebalancing layers": from 28 February on runs use the bf16 optimizer, which accumulates in fp32.
BLOOM_FP32_GRADIENTS = "note 02-28"
BLOOM_HEADS, BLOOM_HEADS_OF_14400 = 64, 96  # the document: "all NHEADS=64 (above too)", and 96 for its 200B runs


def _bloom_layers(row: Row) -> int:
    """Return the layers; where the document says only that they fit the pipeline, the multiple nearest to the size."""
    if row.stated("layers"):
        return row.whole("layers")
    size = re.search(r"(\d+)B", row.text("model"))
    if size is None:
        raise UnexpressedError("layers is not stated")
    pp = row.whole("pp")
    per_layer = 12 * row.whole("hidden") ** 2  # Narayanan et al. 2021, equation 2, without the vocabulary
    return round(int(size[1]) * 1e9 / per_layer / pp) * pp


def _bloom_heads(row: Row) -> int:
    if row.stated("heads"):
        return row.whole("heads")
    return BLOOM_HEADS_OF_14400 if row.whole("hidden") == 14400 else BLOOM_HEADS


def split_by_deepspeed(num_layers: int, stages: int) -> list[int]:
    """Return layers per stage of DeepSpeed's ``partition_balanced``, with or without the embeddings as units.

    Megatron-DeepSpeed counts transformer layers ("type:transformer"); BLOOM's later runs also the two embeddings
    ("type:transformer|embedding"), so that 70 + 2 units fit 12 stages. Every stage but the last is filled to the
    smallest sufficient number.

    >>> split_by_deepspeed(70, 12)
    [5, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 5]
    """
    both_ends = 2 if num_layers % stages and (num_layers + 2) % stages == 0 else 0
    units = num_layers + both_ends
    per_stage = -(-units // stages)
    filled = [max(0, min(per_stage, units - stage * per_stage)) for stage in range(stages)]
    filled[0] -= both_ends // 2
    filled[-1] -= both_ends // 2
    return filled


def bloom(row: Row) -> dict[str, Any]:
    """Return the configuration of a preparatory run of BLOOM."""
    layers, heads = _bloom_layers(row), _bloom_heads(row)
    hidden = row.whole("hidden")
    model = {
        **DEFAULTS,
        "num_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "ffn_hidden_size": row.whole("ffn", 4 * hidden),
        "vocab_size": BLOOM_VOCABULARY,
        "sequence_length": row.whole("seq"),
    }
    stages = row.whole("pp")
    in_fp32 = row.has("notes", BLOOM_FP32_GRADIENTS)
    return {
        **machine(row),
        "model": model,
        "parallelism": layout(
            row,
            layers_per_stage=split_by_deepspeed(layers, stages),
            zero_stage=0 if row.has("zero_fsdp", "ZeRO-0") else 1,
            fp32_gradients=in_fp32,
        ),
        "training": batch(
            row,
            precision="bf16" if in_fp32 else "fp16",
            recompute="full",
            blocking_launches=True,
            framework="megatron-deepspeed",
        ),
    }
