"""QLoRA: frozen weights of linear layers are in four bits, and a kernel widens each matrix before its product.

It runs in every pass: forward, again where the layer is recomputed, and backward for the gradient of the input.

Source: Dettmers et al. 2023, arXiv:2305.14314; bitsandbytes bitsandbytes/autograd/_functions.py, MatMul4Bit.
"""

from __future__ import annotations

from predictor.core.costs.layer_call import LayerCall
from predictor.core.kernel_rows import stream
from predictor.core.rows import FP32_BYTES, Kind, Row

BLOCK = 64  # weights that share a scale in fp32
NF4_BYTES = 0.5 + FP32_BYTES / BLOCK
NAME = "dequantization"


def quantized(row: Row) -> bool:
    """Return whether a row multiplies with weights that are kept in four bits."""
    return row.kind is Kind.PRODUCT and not row.trains


def with_quantized_base(rows: list[Row], call: LayerCall) -> list[Row]:
    """Return rows with the kernels that widen frozen weights, each before its product."""
    widened: list[Row] = []
    for row in rows:
        if quantized(row) and row.forward is not None:
            size_bytes, times = row.weights * (NF4_BYTES + call.element_bytes), row.forward.times
            widened.append(stream(NAME, row.module, call, (size_bytes, size_bytes), (times, times)))
        widened.append(row)
    return widened
