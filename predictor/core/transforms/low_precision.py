"""Low precision: products in few bits, casts of their operands, activations retained in few bits.

A recipe covers the linear layers of a transformer layer, experts included, in all three products: output, gradient of
the data, gradient of the weights. Attention, norms, activations, the router, embedding, output projection and loss stay
in 16 bits, as do all activations and gradients between layers; weights are updated in fp32.
Source: Micikevicius et al. 2022, arXiv:2209.05433; Transformer Engine user guide, "Low precision training".
"""

from __future__ import annotations

from typing import NamedTuple

from predictor.core.costs.layer_call import LayerCall
from predictor.core.costs.operator import in_precision
from predictor.core.kernel_rows import stream
from predictor.core.rows import Kept, Kind, Module, Pass, Row, Split
from predictor.core.workload.recipes import Casts, Recipe
from predictor.core.workload.tasks import BACKWARD


class LowPrecision(NamedTuple):
    """How products run in few bits.

    Attributes:
        recipe: their precision, and the bytes of casts.
        casts: of the engine that runs them.
        weight_bytes: that casting a weight moves in the forward and in the backward pass; 0: it happens once a step.
        fused_experts: an expert's second operand comes cast from the kernel before it.
        keeps_casts: inputs are kept as they were cast; otherwise in 16 bits.
    """

    recipe: Recipe
    casts: Casts
    weight_bytes: tuple[float, float]
    fused_experts: bool
    keeps_casts: bool


def _launches(casts: Casts, times: float) -> float:
    """Return the kernels of a cast: for each of a rank's experts, unless one casts all.

    Source: Transformer Engine, pytorch/csrc/extensions/cast.cpp, multi_tensor_quantize_impl: one kernel for all tensors
    with delayed scaling, else "quantize kernels individually".
    """
    return casts.launches * (min(times, 1.0) if casts.grouped else times)


def _operand_bytes(row: Row, one: Pass, casts: Casts, call: LayerCall) -> float:
    """Return the bytes of casting a product's input, or backward the gradient of its output, and of scaling results.

    With sequence parallelism a rank casts its own share of the tokens before they are gathered.
    """
    m, k, n = one.shape
    is_column, is_back = row.split is Split.COLUMN, one.direction is BACKWARD
    gathered = row.split is not Split.WHOLE and is_column != is_back
    share = call.unsplit_tokens / call.tokens if gathered else 1.0
    if is_back:
        rescaled = casts.rescaled * (m * k + k * n)  # gradients of the input and of the weight
        return (casts.gradient * m * n * share + rescaled) * one.times
    return (casts.normalized if is_column else casts.activation) * m * k * share * one.times


def _comes_cast(row: Row, one: Pass, settings: LowPrecision) -> bool:
    """Return whether the operand comes cast from the fused product before: between an expert's two."""
    made_before = Split.COLUMN if one.direction is BACKWARD else Split.ROW
    return settings.fused_experts and row.module is Module.EXPERTS and row.split is made_before


def _operand_casts(row: Row, call: LayerCall, settings: LowPrecision) -> list[Row]:
    """Return the cast of a product's input and of the gradient of its output."""
    of_experts = row.module is Module.EXPERTS
    size_bytes, launches = [], []
    for one in (row.forward, row.backward):
        runs = one is not None and one.times and not _comes_cast(row, one, settings)
        if one is None or not runs:
            size_bytes.append(0.0)
            launches.append(0.0)
            continue
        size_bytes.append(_operand_bytes(row, one, settings.casts, call))
        fused = of_experts and settings.fused_experts
        launches.append(settings.casts.launches if fused else _launches(settings.casts, one.times))
    if not any(size_bytes):
        return []
    name, both, counts = "expert_casts" if of_experts else "operand_casts", (*size_bytes,), (*launches,)
    return [stream(name, row.module, call, (both[0], both[1]), (counts[0], counts[1]), Kind.CAST)]


def _weight_casts(row: Row, call: LayerCall, settings: LowPrecision) -> list[Row]:
    """Return the cast of a product's weights in each pass; none where it happens once a step."""
    size_bytes, launches = [], []
    for one, per_element in zip((row.forward, row.backward), settings.weight_bytes, strict=True):
        elements = 0.0 if one is None else one.shape[1] * one.shape[2] * one.times
        size_bytes.append(per_element * elements)
        launches.append(_launches(settings.casts, 0.0 if one is None else one.times))
    if not any(size_bytes):
        return []
    moved, counts = (size_bytes[0], size_bytes[1]), (launches[0], launches[1])
    return [stream("weight_casts", row.module, call, moved, counts, Kind.OTHER)]


def _kept(row: Row, call: LayerCall, settings: LowPrecision) -> tuple[Kept, ...]:
    """Return what a product keeps more, negative: less, than a 16-bit input that another row keeps.

    Transformer Engine keeps a product's input as it was cast, one copy for each product that reads it. Source:
    Transformer Engine, pytorch/module/linear.py, saved tensors. torchao keeps inputs in 16 bits and casts again
    (torchao/float8/float8_linear.py).
    """
    if row.reads is None or not settings.keeps_casts:
        return row.keeps
    role, elements, shared = row.reads
    cast = settings.recipe.kept
    return (*row.keeps, Kept(role, elements * (cast if shared else cast - call.element_bytes)))


def is_covered(row: Row) -> bool:
    """Return whether a recipe covers a row: products, but for the router's."""
    return row.kind is Kind.PRODUCT and row.module is not Module.ROUTER


def in_low_precision(rows: list[Row], call: LayerCall, settings: LowPrecision) -> list[Row]:
    """Return a layer's rows with its products in the recipe's precision, and the casts of their operands."""
    lowered: list[Row] = []
    for row in rows:
        if not is_covered(row):
            lowered.append(row)
            continue
        operator = in_precision(row.operator, settings.recipe.product)
        lowered.append(row._replace(operator=operator, keeps=_kept(row, call, settings)))
        lowered += _operand_casts(row, call, settings) + _weight_casts(row, call, settings)
    return lowered


class AttentionBytes(NamedTuple):
    """Bytes that casts around attention in 8 bits move and keep.

    Attributes:
        moved: forward and backward.
        launches: of these.
        kept: beyond what attention in 16 bits keeps, by the tensor.
    """

    moved: tuple[float, float]
    launches: tuple[int, int]
    kept: tuple[Kept, ...]


def with_attention_casts(rows: list[Row], call: LayerCall, casts: AttentionBytes) -> list[Row]:
    """Return a layer's rows with the casts around attention in 8 bits."""
    return [*rows, stream("attention_casts", Module.CORE, call, casts.moved, casts.launches, Kind.OTHER, 0, casts.kept)]
