"""Bytes of frozen weights that are kept in few bits (bitsandbytes).

Scales of four bits are in fp32, or, quantised themselves (double quantisation), in eight bits by blocks of 256. Ranks
that share out a base share out its bits; bitsandbytes keeps scales beside the parameter, whole on every rank.

Source: Dettmers et al. 2023, arXiv:2305.14314; bitsandbytes bitsandbytes/nn/modules.py,
fix_4bit_weight_quant_state_from_module; functional.py, dequantize_4bit.
"""

from __future__ import annotations

from enum import StrEnum

FP32, INT8 = 4, 1  # bytes
BLOCK, SCALES_BLOCK = 64, 256  # weights that share a scale, and scales in eight bits that share one in fp32


class QuantizedBase(StrEnum):
    """How frozen weights of linear layers are kept in few bits (bitsandbytes)."""

    NF4 = "nf4"
    NF4_DOUBLE = "nf4_double"
    INT8 = "int8"


PACKED_BYTES = {QuantizedBase.NF4: 0.5, QuantizedBase.NF4_DOUBLE: 0.5, QuantizedBase.INT8: 1.0}
SCALE_BYTES = {
    QuantizedBase.NF4: FP32 / BLOCK,
    QuantizedBase.NF4_DOUBLE: (INT8 + FP32 / SCALES_BLOCK) / BLOCK,
    QuantizedBase.INT8: 0.0,  # one per row alone
}
# Scales in eight bits are widened to fp32, to which their mean is added, before the weights' kernel reads them.
WIDENED_SCALES_BYTES = 4 * FP32 / BLOCK
WIDENED_SCALES_LAUNCHES = 2


def widening(base: QuantizedBase, element_bytes: int) -> tuple[float, int]:
    """Return the bytes per weight of widening a matrix in four bits, and the launches."""
    each, launches = PACKED_BYTES[base] + SCALE_BYTES[base] + element_bytes, 1
    if base is QuantizedBase.NF4_DOUBLE:
        return each + WIDENED_SCALES_BYTES, launches + WIDENED_SCALES_LAUNCHES
    return each, launches
