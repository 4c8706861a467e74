"""Frozen weights of linear layers in four or eight bits, beside adapters that train in 16.

In four bits (QLoRA) a kernel widens each matrix before its product in every pass: forward, again where the layer is
recomputed, and backward for the gradient of the input. In eight (LLM.int8) the forward product multiplies integers:
kernels narrow its input by rows and scale its sums, and columns of outliers are multiplied in 16 bits; backward the
matrix is widened and scaled. Products of integers were not measured: they are timed as products in 16 bits.

Source: Dettmers et al. 2023, arXiv:2305.14314, and 2022, arXiv:2208.07339; bitsandbytes
bitsandbytes/autograd/_functions.py, MatMul4Bit and MatMul8bitLt.
"""

from __future__ import annotations

from collections.abc import Iterator

from predictor.core.costs.layer_call import LayerCall
from predictor.core.kernel_rows import stream
from predictor.core.rows import Kind, Row
from predictor.core.transforms.few_bits import QuantizedBase, widening

INT8, INT32 = 1, 4  # bytes
# Kernels beside a product of integers: narrow the input, look for outliers, take their columns of input and weights,
# scale the sums, add the outliers' product.
INT8_LAUNCHES = 6
WIDENING_LAUNCHES = 2  # cast and scale
NAME = "dequantization"


def with_quantized_base(rows: list[Row], call: LayerCall, base: QuantizedBase) -> list[Row]:
    """Return rows with the kernels that frozen weights in few bits need, each before its product."""
    widened: list[Row] = []
    for row in rows:
        if row.kind is Kind.PRODUCT and not row.trains and row.forward is not None:
            widened += _in_eight_bits(row, call) if base is QuantizedBase.INT8 else _in_four_bits(row, call, base)
            row = row._replace(narrow=True)
        widened.append(row)
    return widened


def _in_four_bits(row: Row, call: LayerCall, base: QuantizedBase) -> Iterator[Row]:
    assert row.forward is not None
    each, launches = widening(base, call.element_bytes)
    size_bytes, times = row.weights * each, row.forward.times * launches
    yield stream(NAME, row.module, call, (size_bytes, size_bytes), (times, times))


def _in_eight_bits(row: Row, call: LayerCall) -> Iterator[Row]:
    assert row.forward is not None
    narrow, times = call.element_bytes, row.forward.times
    tokens, width, out = row.forward.shape[0], row.forward.shape[1], row.forward.shape[2]
    # The input is read and written as integers; the sums are written wide, read, and written in 16 bits.
    forward = times * tokens * (width * (narrow + INT8) + out * (2 * INT32))
    backward = row.weights * (INT8 + 3 * narrow)
    yield stream(NAME, row.module, call, (forward, backward), (times * INT8_LAUNCHES, times * WIDENING_LAUNCHES))
