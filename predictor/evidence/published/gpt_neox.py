"""GPT-NeoX on DeepSpeed (gpumodeling25): jobs on Perlmutter and Vista, with the profiler on."""

from __future__ import annotations

import re
from typing import Any

from predictor.evidence.published.row import Row, batch, dense_model, layout
from predictor.evidence.published.systems import machine


def _model(row: Row) -> dict[str, Any]:
    """Return the model section; switches from the descriptions of the model and of attention."""
    rotary = re.search(r"rotary ([0-9.]+)", row.text("model").lower())
    rms = row.has("model", "rmsnorm")
    return dense_model(
        row,
        normalization="rms_norm" if rms else "layer_norm",
        attention="flash" if row.has("attention", "flash") else "fused_softmax",
        rotary_fraction=float(rotary[1]) if rotary else 1.0,
        parallel_residual=row.has("model", "gpt_j_residual"),
        biases=not rms,
    )


def configuration(row: Row) -> dict[str, Any]:
    """Return the configuration of a job; each layer synchronizes, as the notes say."""
    return {
        **machine(row),
        "model": _model(row),
        "parallelism": layout(row, layers_per_stage="gpt_neox", zero_stage=1 if row.has("zero_fsdp", "ZeRO-1") else 0),
        "training": batch(
            row,
            precision=row.text("precision").split()[0],
            recompute="full" if row.has("recompute", "full") else "none",
            synchronize_each_layer=True,
            framework="gpt-neox",
        ),
    }
