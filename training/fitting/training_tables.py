"""Read tables of layers that were timed in both directions: ``<GPU>/{gemm,attention}_training.csv``.

The first line of a file names the GPU and the source, as in ``public_tables``. ``forward_us`` and ``backward_us`` are
wall time around calls with autograd; an empty one was not measured. ``run`` names the state of the source's kernels.

- gemm_training: a linear layer, (m, k) @ (k, n); backward are both gradients. In 8 bits the casts are in the time.
- attention_training: flash attention; heads as wide in keys and in values, or DeepSeek's 192 and 128. Rows with as many
  key-value heads as query heads are of ``grouped_query_attention``, as its simplest case, and those of the common width
  of ``flash_attention``, too.

Source of the rows: github.com/AMD-AGI/Primus-Turbo, github.com/HazyResearch/HipKittens (both MIT).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pandas as pd

from fitting.tables import Row
from predictor.core.costs.catalogue import catalogue
from predictor.core.costs.operator import Direction, Shape
from predictor.core.costs.operators.mla_attention import KEY_WIDTH, VALUE_WIDTH
from predictor.core.costs.work import ELEMENT_BYTES, FP8_PRECISIONS, PRECISION_BYTES
from predictor.core.hardware.device_sheets import sheet_named

GROUPED = "grouped_query_attention"
COMMON_WIDTH = 128
Record = dict[str, Any]
COLUMNS = {Direction.FORWARD: "forward_us", Direction.BACKWARD: "backward_us"}
# Earlier states of kernels that a later run of the same source replaced. The newest bf16 products and attention are
# those of the frameworks' own libraries (hipBLASLt, aiter), which two runs of several months apart time alike.
REPLACED = frozenset(
    {
        "baseline db3d8e7a",
        "baseline_attention 221d75f1",
        "baseline_gemm 221d75f1",
        "gemm_fp8_blockwise_baseline 6094c573",
        "gemm_turbo_fp8_blockwise_20260403_MI355X 6094c573",
    }
)
REPLACED_RUN = "an earlier state of a kernel under development: {run}"
# HipKittens' own kernels are no framework's. aiter's backward pass with shared keys and values takes a path in the
# version that was timed, 3.5 to 5 times as slow as without.
NOT_SHIPPED = frozenset({"HipKittens"})
SLOW_PATH = "a slow path of one release: shared keys and values backward"


def _linear(record: Record) -> tuple[str, Shape]:
    return "ffn_up", (int(record["m"]), int(record["k"]), int(record["n"]))


def _attention(record: Record) -> tuple[str, Shape] | None:
    batch, length, heads, kv_heads, width = (
        int(record[key]) for key in ("batch_size", "isl", "num_heads", "num_key_value_heads", "head_dim")
    )
    causal = int(record["causal"])
    if width != int(record["head_dim_v"]):
        is_latent = (width, int(record["head_dim_v"]), causal) == (KEY_WIDTH, VALUE_WIDTH, 1)
        return ("mla_attention", (batch, length, heads)) if is_latent else None
    return GROUPED, (batch, length, heads, kv_heads, width, causal, 0)


CALLS: dict[str, Callable[[Record], tuple[str, Shape] | None]] = {
    "gemm_training": _linear,
    "attention_training": _attention,
}


def _unusable(record: Record, direction: Direction) -> str | None:
    """Return why a row is no time of the kernels that training runs; None if it is one."""
    if record["run"] in REPLACED:
        return REPLACED_RUN.format(run=record["run"])
    shares = record.get("num_heads") != record.get("num_key_value_heads")
    if record["kernel_source"] == "aiter" and direction is Direction.BACKWARD and shares:
        return SLOW_PATH
    return None


def least_cast_us(shape: Shape, direction: Direction, precision: str, gpu: str) -> float:
    """Return the least time of the casts in a linear layer's time: operands read in 16 bits and written in 8.

    Forward both operands are cast, backward the gradient. A prediction times casts apart.
    """
    sheet = sheet_named(gpu)
    if precision not in FP8_PRECISIONS or sheet is None:
        return 0.0
    m, k, n = shape
    elements = m * k + k * n if direction is Direction.FORWARD else m * n
    return elements * (ELEMENT_BYTES + PRECISION_BYTES[precision]) / (sheet.memory_bandwidth_gb_per_s * 1e3)


def rows_of(table: str, frame: pd.DataFrame, precision: str, gpu: str) -> Iterator[Row]:
    """Yield the rows of a table in one precision, each direction that was measured."""
    operators = catalogue()
    for values in frame[~frame["kernel_source"].isin(NOT_SHIPPED)].to_dict("records"):
        record = {str(key): value for key, value in values.items()}
        call = CALLS[table](record)
        if call is None:
            continue
        name, shape = call
        for direction, column in COLUMNS.items():
            if not pd.isna(us := record[column]):
                cast_us = least_cast_us(shape, direction, precision, gpu) if table == "gemm_training" else 0.0
                why = _unusable(record, direction)
                row = Row(operators[name], table, direction, shape, float(us) - cast_us, unusable=why)
                yield row
                if name == GROUPED and shape[2] == shape[3] and shape[4] == COMMON_WIDTH:
                    multi_head = (*shape[:3], *shape[4:6])
                    yield replace(row, operator=operators["flash_attention"], shape=multi_head)
