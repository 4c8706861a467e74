"""Megatron-LM of 2021 and 2022 on Selene (Narayanan et al., Korthikanti et al.) and MT-NLG 530B."""

from __future__ import annotations

from typing import Any

from predictor.evidence.published.megatron_deepspeed import DEFAULTS
from predictor.evidence.published.row import Row, batch, dense_model, layout
from predictor.evidence.published.systems import machine


def _recompute(row: Row) -> str:
    if row.has("recompute", "full"):
        return "full"
    return "selective" if row.has("recompute", "attn", "selective") else "none"


def narayanan(row: Row) -> dict[str, Any]:
    """Return the configuration of a row of arXiv:2104.04473.

    PyTorch's data-parallel wrapper overlaps the reduction without a pipeline: examples/sc21/run_table_1.sh.
    """
    return {
        **machine(row),
        "model": dense_model(row, **DEFAULTS),
        "parallelism": layout(row, zero_stage=0, overlap_gradient_reduction=row.whole("pp") == 1),
        "training": batch(row, precision="fp16", recompute=_recompute(row), framework="megatron-lm"),
    }


def korthikanti(row: Row) -> dict[str, Any]:
    """Return the configuration of a row of arXiv:2205.05198; backward, traffic runs beside weight gradients."""
    return {
        **machine(row),
        "model": dense_model(row, **DEFAULTS),
        "parallelism": layout(
            row, zero_stage=0, sequence_parallel=row.has("seq_parallel", "yes"), overlap_tensor_parallel=True
        ),
        "training": batch(row, precision="fp16", recompute=_recompute(row), framework="megatron-lm"),
    }


def mt_nlg(row: Row) -> dict[str, Any]:
    """Return the configuration of Megatron-Turing NLG 530B (arXiv:2201.11990): as Narayanan's, on DeepSpeed."""
    return {
        **machine(row),
        "model": dense_model(row, **DEFAULTS),
        "parallelism": layout(row, zero_stage=0),
        "training": batch(row, precision="bf16", recompute="full", framework="megatron-deepspeed"),
    }
