"""FSDP on torch: fms-fsdp of IBM, torchtitan of Meta, and torchtitan with torchao's low precision.

Sources. fms-fsdp: fms_fsdp/policies/mixed_precision.py (parameters and reduction in bf16), docs/configurations.md
(``selective_checkpointing`` 1, every block whole), README (torch.compile). torchtitan: torchtitan/config
(``mixed_precision_param`` bfloat16, ``mixed_precision_reduce`` float32, FSDP2, reshard after forward without a
pipeline), train_configs/llama3_*.toml (``selective_ac_option`` op), benchmarks/llama3_h100_202412_torchtitan.md; float8
rows with tensor-wise scales gather in float8 (``enable_fsdp_float8_all_gather``). Attention is torch's
scaled_dot_product_attention: FlashAttention 2, and on B200 cuDNN (torchtitan, pull request 1196). Until early 2025 the
loss was not compiled with the model ("compiling loss function causes CUDA errors, turning off for now": train.py, then
components/loss.py): in the rows of December 2024, and in torchao's of torchtitan 0.0.2, those on H100.
"""

from __future__ import annotations

from typing import Any

from predictor.evidence.published.row import Row, batch, dense_model, layout
from predictor.evidence.published.systems import machine

LLAMA: dict[str, Any] = {"normalization": "rms_norm", "activation": "swiglu", "attention": "flash", "loss": "torch"}


def _attention(row: Row) -> dict[str, Any]:
    if row.has("gpu", "MI3"):
        return {}
    return {"attention_kernel": "cudnn" if row.has("gpu", "B200", "B300") else "flash_2"}


def _fsdp(row: Row, **switches: Any) -> dict[str, Any]:
    tp = row.whole("tp", 1)
    return layout(
        row,
        zero_stage=3,
        overlap_gradient_reduction=True,
        overlap_parameter_gather=True,
        fp32_parameters=True,
        sequence_parallel=tp > 1,
        **switches,
    )


def fms_fsdp(row: Row) -> dict[str, Any]:
    """Return the configuration of a row of fms-fsdp."""
    return {
        **machine(row),
        "model": dense_model(row, **LLAMA),
        "parallelism": _fsdp(row, gather_precision="bf16"),
        "training": batch(
            row,
            precision="bf16",
            recompute="full" if row.has("recompute", "full", "selective") else "none",
            recompute_stops_early=True,
            compiled=True,
            framework="fms-fsdp",
            **_attention(row),
        ),
    }


def _loss(row: Row) -> str:
    is_early = row.has("source", "202412") or (row.has("group", "torchao") and row.has("gpu", "H100"))
    return "torch_eager" if is_early else "torch"


def _recompute(row: Row) -> str:
    if row.has("recompute", "full"):
        return "full"
    return "per_op" if row.has("recompute", "selective") else "none"


def _recipe(row: Row) -> str | None:
    """Return the low precision that a row of torchtitan names in its columns precision and fp8_recipe."""
    text = f"{row.text('precision')} {row.text('fp8_recipe')}".lower()
    if "mxfp8" in text:
        return "mxfp8"
    if "fp8" not in text and "float8" not in text:
        return None
    return "fp8_rowwise" if "rowwise" in text else "fp8_tensorwise"


def torchtitan(row: Row) -> dict[str, Any]:
    """Return the configuration of a row of torchtitan, with torchao's recipes or without."""
    recipe = _recipe(row)
    eager = row.has("precision", "eager")
    training = batch(
        row,
        precision="bf16",
        recompute=_recompute(row),
        recompute_stops_early=True,
        compiled=not eager,
        framework="torchtitan",
        **_attention(row),
    )
    if recipe is not None:
        training["gemm_recipe"] = recipe
    asynchronous = row.has("precision", "AsyncTP") or row.has("notes", "async TP")
    return {
        **machine(row),
        "model": dense_model(row, **LLAMA | {"loss": _loss(row)}),
        "parallelism": _fsdp(
            row,
            fp32_gradients=True,
            gather_precision="fp8" if recipe == "fp8_tensorwise" else "bf16",
            overlap_linear_traffic=asynchronous,
        ),
        "training": training,
    }
