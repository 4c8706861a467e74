"""InternEvo: InternLM-7B on A100s, ZeRO-1 over groups.

Source: InternEvo, configs/7B_sft.py and doc/en/train_performance.md: RMSNorm, SwiGLU, biases in attention,
FlashAttention 2, gradients reduced beside the backward pass in buckets of 512 MiB (``overlap_sync_grad``), parameters
broadcast after the step (``overlap_sync_param`` off), tensor parallelism without sequence parallelism ("mtp").
"""

from __future__ import annotations

import re
from typing import Any

from predictor.evidence.published.row import Row, batch, dense_model, layout
from predictor.evidence.published.systems import machine

BUCKET_BYTES = 512 * 2**20


def configuration(row: Row) -> dict[str, Any]:
    """Return the configuration of a row."""
    group = re.search(r"group ?= ?(\d+)", row.text("zero_fsdp"))
    switches: dict[str, Any] = {"zero_group_size": int(group[1])} if group else {}
    return {
        **machine(row),
        "model": dense_model(
            row,
            normalization="rms_norm",
            activation="swiglu",
            attention="flash",
            biases="qkv",
            loss="torch",
        ),
        "parallelism": layout(
            row,
            zero_stage=1,
            sequence_parallel=row.has("seq_parallel", "yes"),
            overlap_gradient_reduction=True,
            gradient_bucket_elements=BUCKET_BYTES // 2,
            **switches,
        ),
        "training": batch(
            row,
            precision="bf16",
            recompute="full" if row.has("recompute", "full", "true") else "none",
            attention_kernel="flash_2",
            framework="internevo",
        ),
    }
