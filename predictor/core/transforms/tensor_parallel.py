"""Tensor parallelism: all-reduces behind row-parallel products, and their overlap with products.

With sequence parallelism each sum is a gather before a column-parallel product and a scatter behind the row-parallel
one, of the same bytes together. Source: Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.2.

In chunks, a gather before a column-parallel product arrives shard by shard, and each shard is multiplied while the next
is on its way; the first is there already. What a row-parallel product makes is scattered in parts while the next part
is computed; the last part has nothing beside it. Backward, gradients arrive in the same way before row-parallel
products. Source: TransformerEngine pytorch/module/base.py, initialize_ub: "ring_exchange" for qkv_fprop, fc1_fprop,
proj_dgrad and fc2_dgrad, "pipeline" with num_splits 4 and num_sm 16 for proj_fprop and fc2_fprop, "bulk" beside whole
products for the others.

torch's compiler finds gathers whose result is the first factor of products, and scatters of one product's result
(fused_all_gather_matmul, fused_matmul_reduce_scatter): forward all of them, in as many chunks as ranks, which copy
engines move; a kernel behind sums the parts. Backward the gathers before row-parallel products alone: inputs that are
gathered again are second factors, of gradients of weights, and gradients of an input that several products read are
added before they are scattered. Source: PyTorch torch/_inductor/fx_passes/micro_pipeline_tp.py (_find_consumer_matmuls,
fuse_matmul_reduce_scatter), torch/distributed/_symmetric_memory (_fused_matmul_reduce_scatter_impl).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

from predictor.core.costs.collectives import Topology
from predictor.core.costs.layer_call import LayerCall
from predictor.core.kernel_rows import stream, traffic
from predictor.core.rows import COPY_PASSES, Behind, Kind, Module, Pass, Row, Split
from predictor.core.workload.tasks import Part

SCATTER_CHUNKS = 4
# A product beside a scatter is launched for the multiprocessors that the scatter's 16 leave (set_sm_margin): of 132 on
# Hopper; of 108 to 152 on others, a difference of 3 %.
SM_MARGIN_SLOWDOWN = 132 / (132 - 16)


class Sum(NamedTuple):
    """Sums over the group in one branch of a layer, forward and backward.

    Attributes:
        module: of the branch.
        counts: sums of activations, forward and backward.
        input_share: width of the inputs of the branch's column-parallel products over the hidden one.
        width_share: width of a token over the hidden one.
        overlaps: they may run beside products; tokens on their way to experts wait for nothing.
        gathered_again: backward, the inputs of column-parallel products are gathered again.
        group: of the sum where it is not the tensor-parallel one; its tokens are a rank's own.
    """

    module: Module
    counts: tuple[float, float]
    input_share: float = 1.0
    width_share: float = 1.0
    overlaps: bool = True
    gathered_again: bool = True
    group: Topology | None = None


class TensorParallel(NamedTuple):
    """How sums travel.

    Attributes:
        group: tensor-parallel ranks.
        sequence_parallel: as a gather and a scatter.
        gathered: bytes of a gathered element over those of an activation (low precision).
        gathers_again: gradients of weights need the gathered inputs backward.
        overlaps: backward, beside the products that do not wait for them.
        in_chunks: forward and backward, in chunks beside the products that they feed or follow.
        by_compiler: chunks are those of torch's compiler.
        splits_backward: gradients of weights run in slots of their own, later.
        measured: products of a backward pass that the system measured by themselves.
    """

    group: Topology
    sequence_parallel: bool
    gathered: float
    gathers_again: bool
    overlaps: bool
    in_chunks: bool
    by_compiler: bool
    splits_backward: bool
    measured: frozenset[str] = frozenset()


def _one_way(
    each: Sum, call: LayerCall, settings: TensorParallel, shares: tuple[float, float], backward: bool = False
) -> list[Row]:
    """Return a branch's sums in one direction; shares of an activation's bytes that are gathered and summed."""
    count = each.counts[backward]
    if not count:
        return []
    times = (0.0, count) if backward else (count, 0.0)
    activation = call.tokens * call.hidden_size * call.element_bytes
    part = Part.TENSOR_PARALLEL
    gathered, summed = shares
    if each.group is not None:  # Megatron-LM core/transformer/moe/token_dispatcher.py, over the expert-tensor ranks
        shard = call.unsplit_tokens * each.width_share * call.hidden_size * call.element_bytes
        return [
            *traffic("all_gather", each.module, shard, each.group, part, times, Kind.GATHER),
            *traffic("reduce_scatter", each.module, shard, each.group, part, times, Kind.SUM),
        ]
    if not settings.sequence_parallel:
        return traffic("all_reduce", each.module, activation * summed, settings.group, part, times, Kind.SUM)
    shard = activation // call.tensor_parallel_size
    return [
        *traffic("all_gather", each.module, shard * gathered, settings.group, part, times, Kind.GATHER),
        *traffic("reduce_scatter", each.module, shard * summed, settings.group, part, times, Kind.SUM),
    ]


def _forward(each: Sum, call: LayerCall, settings: TensorParallel) -> list[Row]:
    if not each.overlaps:
        return _one_way(each, call, settings, (each.width_share, each.width_share))
    return _one_way(each, call, settings, (settings.gathered * each.input_share, 1.0))


def _backward(each: Sum, call: LayerCall, settings: TensorParallel) -> list[Row]:
    if not each.overlaps:
        return _one_way(each, call, settings, (each.width_share, each.width_share), backward=True)
    return _one_way(each, call, settings, (settings.gathered, each.input_share), backward=True)


def _again(each: Sum, call: LayerCall, settings: TensorParallel) -> list[Row]:
    """Return the gathers, backward, of the inputs of column-parallel products: their weights' gradients need them.

    Frozen weights have no gradients; what adapters read of a gathered input is kept.
    """
    if not (settings.sequence_parallel and settings.gathers_again and each.overlaps):
        return []
    rows = _one_way(each, call, settings, (settings.gathered * each.input_share, 1.0), backward=True)
    return [row for row in rows if row.kind is Kind.GATHER]


def _is_split_product(row: Row, split: Split) -> bool:
    return row.kind is Kind.PRODUCT and row.split is split


def _chunked(row: Row, chunks: int, factor: float = 1.0) -> Row:
    """Return a product whose forward pass is ``chunks`` products of fewer rows each."""
    one = row.forward
    if one is None:
        return row
    rows, *others = one.shape
    if chunks > 1 and rows % chunks == 0:
        one = Pass(one.direction, (rows // chunks, *others), one.times * chunks, one.launches * chunks)
    return row._replace(forward=one._replace(times=one.times * factor))


def _spread(
    traffic_rows: list[Row], products: Sequence[Row], count: float, hidden_share: float, chunks: float
) -> tuple[list[Row], list[Row]]:
    """Return traffic spread over products, and what is left where there are more calls of it than products.

    Args:
        traffic_rows: of ``count`` sums.
        products: that it may run beside.
        count: sums of a pass.
        hidden_share: share of a product that traffic can run beside.
        chunks: of the traffic, of which the last waits for the whole product.
    """
    beside = min(count, len(products))
    hidden = []
    for row in products:
        behind = Behind((row,), hidden_share, buckets=chunks)
        share = beside / count / len(products)
        hidden += [_scaled(each, share)._replace(module=row.module, behind=behind) for each in traffic_rows]
    return hidden, [_scaled(each, 1.0 - beside / count) for each in traffic_rows] if beside < count else []


def _scaled(row: Row, share: float) -> Row:
    forward, backward = (one and one.scaled(share) for one in (row.forward, row.backward))
    return row._replace(forward=forward, backward=backward)


def _split_kinds(rows: list[Row]) -> tuple[list[Row], list[Row]]:
    return [row for row in rows if row.kind is Kind.GATHER], [row for row in rows if row.kind is not Kind.GATHER]


def _in_chunks(rows: list[Row], sums: list[Row], count: float, settings: TensorParallel) -> list[Row]:
    """Return a layer's rows with the gathers and scatters of the forward pass in chunks beside its products."""
    if not sums:
        return rows
    ranks = settings.group.ranks
    chunks, factor = (ranks, 1.0) if settings.by_compiler else (SCATTER_CHUNKS, SM_MARGIN_SLOWDOWN)
    rows = [_chunked(row, ranks) if _is_split_product(row, Split.COLUMN) else row for row in rows]
    rows = [_chunked(row, chunks, factor) if _is_split_product(row, Split.ROW) else row for row in rows]
    gathers, scatters = _split_kinds(sums)
    columns = [row for row in rows if _is_split_product(row, Split.COLUMN)]
    outputs = [row for row in rows if _is_split_product(row, Split.ROW)]
    arriving, waiting = _spread(gathers, columns, count, 1.0 - 1.0 / ranks, inf)
    leaving, left = _spread(scatters, outputs, count, 1.0, chunks)
    return rows + waiting + left + arriving + leaving


def _hidden_behind_products(
    rows: list[Row], sums: list[Row], again: list[Row], count: float, settings: TensorParallel
) -> list[Row]:
    """Return the sums of a backward pass, in turn or beside products that do not wait for them.

    The gradient of a column-parallel product's input travels while that of its weights is computed, and with sequence
    parallelism its input is gathered again while the gradient of it is computed. Source: Megatron-LM
    core/tensor_parallel/layers.py, LinearWithGradAccumulationAndAsyncCommunication.backward.
    """
    columns, measured = [row for row in rows if _is_split_product(row, Split.COLUMN)], settings.measured
    waiting, leaving = _split_kinds(sums)
    alone: list[Row] = []
    if settings.by_compiler:
        alone, again = [*leaving, *again], []
    elif settings.splits_backward:
        waiting, leaving = waiting + leaving, []
    hidden: list[Row] = []
    of_weights = Behind(tuple(row.weight_gradient(measured) for row in columns), slows=True)
    of_inputs = Behind(tuple(row.input_gradient(measured) for row in columns), slows=True)
    for each, behind in (([] if alone else leaving, of_weights), (again, of_inputs)):
        hidden += [row._replace(behind=behind) for row in each]
    if settings.in_chunks and leaving and waiting:
        outputs = [row.input_gradient(measured) for row in rows if _is_split_product(row, Split.ROW)]
        beside, waiting = _spread(waiting, outputs, count, 1.0 - 1.0 / settings.group.ranks, inf)
        hidden += beside
    return waiting + hidden + alone


def _sums_of_parts(sums: Sequence[Sum], call: LayerCall, settings: TensorParallel) -> list[Row]:
    """Return the kernels that add up what the ranks sent of a scatter: parts of all ranks in, a share out."""
    if not (settings.in_chunks and settings.by_compiler and settings.sequence_parallel):
        return []
    moved = call.tokens * call.hidden_size * call.element_bytes * (1.0 + 1.0 / settings.group.ranks)
    forward = [(each.module, each.counts[0]) for each in sums if each.overlaps and each.counts[0]]
    return [stream("sum_of_parts", to, call, (moved * n, 0.0), (n, 0.0), Kind.OTHER) for to, n in forward]


def sequence_copies(sums: Sequence[Sum], call: LayerCall, settings: TensorParallel, in_casts: bool) -> list[Row]:
    """Return the copies behind gathers and before scatters that split the second dimension of (batch, tokens, hidden).

    NCCL joins and cuts the first one, so that PyTorch's functional collectives copy what is whole on every rank; a
    batch of one needs none. Kernels that cast a gathered operand to low precision read it as it comes.

    Source: PyTorch torch/distributed/_functional_collectives.py, all_gather_tensor (_maybe_view_chunk_cat) and
    reduce_scatter_tensor (torch.cat of torch.chunk).
    """
    whole = COPY_PASSES * call.tokens * call.hidden_size * call.element_bytes
    gathered = 0.0 if in_casts and settings.gathered == 1.0 else whole * settings.gathered
    rows = []
    for each in sums:
        if not each.overlaps:
            continue
        ahead, back = each.counts
        again = back * (1 + settings.gathers_again)
        gathers, scatters = (ahead * gathered, again * gathered), (ahead * whole, back * whole)
        rows.append(stream("gather_copies", each.module, call, gathers, (ahead, again), Kind.GATHER))
        rows.append(stream("scatter_copies", each.module, call, scatters, (ahead, back), Kind.SUM))
    return rows


def with_sums(rows: list[Row], call: LayerCall, sums: Sequence[Sum], settings: TensorParallel) -> list[Row]:
    """Return a layer's rows with the sums of its branches over the tensor-parallel group.

    Args:
        rows: of the layer.
        call: sizes of the layer.
        sums: of its branches.
        settings: how they travel.
    """
    linear = [each for each in sums if each.overlaps]
    forward = [row for each in linear for row in _forward(each, call, settings)]
    backward = [row for each in linear for row in _backward(each, call, settings)]
    again = [row for each in linear for row in _again(each, call, settings)]
    routed = [row for each in sums if not each.overlaps for row in _forward(each, call, settings)]
    routed += [row for each in sums if not each.overlaps for row in _backward(each, call, settings)]
    counts = [sum(each.counts[way] for each in linear) for way in (0, 1)]
    rows = _in_chunks(rows, forward, counts[0], settings) if settings.in_chunks else rows + forward
    rows += _sums_of_parts(sums, call, settings)
    if settings.overlaps or settings.in_chunks:
        backward = _hidden_behind_products(rows, backward, again, counts[1], settings)
    else:
        backward = backward + again
    return rows + backward + routed
