"""Attention between its projections, on one rank or around a context-parallel ring."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from predictor.core.blocks.mixers import LayerKind
from predictor.core.costs.catalogue import catalogue
from predictor.core.costs.layer_call import LayerCall
from predictor.core.costs.operator import in_kernel, in_precision
from predictor.core.costs.operators.mla_attention import KEY_WIDTH, VALUE_WIDTH
from predictor.core.kernel_rows import both, stream, traffic
from predictor.core.rows import FP32_BYTES, MASK_BYTES, Behind, Kept, Kind, Module, Role, Row, dropout_bytes
from predictor.core.workload.architecture import Architecture
from predictor.core.workload.layout import Layout
from predictor.core.workload.switches import Attention
from predictor.core.workload.tasks import Part

GROUPED, LATENT = "grouped_query_attention", "mla_attention"
CORE = {
    Attention.FLASH: ("flash_attention",),
    Attention.FUSED_SOFTMAX: ("attention_scores", "causal_softmax", "attention_values"),
    Attention.UNFUSED: ("attention_scores", "attention_mask", "softmax", "attention_values"),
}
CORE_OPERATORS = frozenset({GROUPED, LATENT, *(name for names in CORE.values() for name in names)})
# Megatron-LM's fused softmax takes rows of at most so many keys, and whole groups of so many heads of all samples.
# Source: megatron/model/fused_softmax.py, is_kernel_available; fused_kernels/scaled_upper_triang_masked_softmax.h.
FUSED_SOFTMAX_KEYS = 16384
FUSED_SOFTMAX_HEADS = 4
# Without it scores are widened to fp32, scaled, masked, put through softmax and narrowed; of their bytes those that
# ``attention_mask`` and ``softmax`` in 16 bits do not have. Source: the same file, forward_torch_softmax.
WIDENED_SOFTMAX_BYTES = (2 + 4) + (4 + 4) + 4 + 4 + (4 + 2)
WIDENED_SOFTMAX_LAUNCHES = 3
# Of a pair of a rank's chunks and another's, one half of the scores is needed where every rank holds one chunk from the
# front of the sequence and one from its back. Source: Brandon et al. 2023, arXiv:2311.09431 (striped attention);
# Megatron-LM's zigzag split, core/utils.py get_batch_on_this_cp_rank.
NEEDED_OF_A_PAIR = 0.5
# Of such a pair either all keys meet half of the queries, or half of the keys all queries.
MET_OF_A_PAIR = 0.75


class CoreKernel(NamedTuple):
    """Kernel of fused attention.

    Attributes:
        implementation: empty: the one that the system was measured with.
        precision: empty: that of the step.
        kept: bytes of a key or a value as it travels around a ring; 0: those of an activation.
    """

    implementation: str = ""
    precision: str = ""
    kept: float = 0.0

    def row(self, name: str, call: LayerCall, times: float = 1.0) -> Row:
        """Return the row of one of attention's operators."""
        operator = in_kernel(catalogue()[name], self.implementation)
        operator = in_precision(operator, self.precision) if self.precision else operator
        return Row(name, Module.CORE, Kind.OTHER, operator, *both(operator, operator.shape_in(call), times))


AS_MEASURED = CoreKernel()


def core_names(model: Architecture, kind: LayerKind) -> tuple[str, ...]:
    """Return the operators of attention's core.

    Latent attention of other widths than the operator's is plain attention of heads as wide as its queries, keys and
    values on average, which has the same FLOPs (``sized``).
    """
    latent = model.latent_of(kind.mixer)
    chooses = latent is not None and latent.indexer is not None and latent.indexer.top_k < model.sequence_length
    is_windowed = model.window_of(kind.mixer) > 0
    if chooses or (latent is not None and is_windowed):
        return (GROUPED,)
    if latent is not None and model.attention is Attention.FLASH:
        is_measured = model.causal and (latent.key_width, latent.v_head_dim) == (KEY_WIDTH, VALUE_WIDTH)
        return (LATENT,) if is_measured else CORE[Attention.FLASH]
    if model.attention is Attention.FLASH and (is_windowed or model.key_value_heads < model.num_attention_heads):
        return (GROUPED,)
    return CORE[model.attention]


def segmented(call: LayerCall) -> tuple[LayerCall, float]:
    """Return a call whose samples are the segments that attention stays inside, and how many such calls one is.

    All segments are as long as the mean one: of documents of unequal lengths attention takes longer.
    """
    if not 0 < call.segment < call.sequence_length:
        return (replace(call, segment=0) if call.segment else call), 1.0
    samples = call.micro_batch_size * call.sequence_length / call.segment
    whole = max(1, int(samples))
    return replace(call, micro_batch_size=whole, sequence_length=call.segment, segment=0), samples / whole


def softmax_is_fused(call: LayerCall) -> bool:
    """Return whether Megatron-LM's fused softmax runs on these sizes; otherwise PyTorch's single kernels do."""
    heads = call.micro_batch_size * call.heads_per_rank
    return call.sequence_per_rank <= FUSED_SOFTMAX_KEYS and heads % FUSED_SOFTMAX_HEADS == 0


def _scores(call: LayerCall) -> int:
    return call.micro_batch_size * call.heads_per_rank * call.sequence_per_rank**2


def _kept_scores(model: Architecture, call: LayerCall, times: float) -> Kept:
    """Return softmax's output, with dropout its mask and its output as well; of flash attention one fp32 sum a row."""
    rows = times * call.micro_batch_size * call.heads_per_rank * call.sequence_per_rank
    if model.attention is Attention.FLASH:
        return Kept(Role.SCORES, rows * float(FP32_BYTES))
    per_score = call.element_bytes + (MASK_BYTES + call.element_bytes if model.attention_dropout else 0)
    return Kept(Role.SCORES, float(rows * call.sequence_per_rank * per_score))


def _on_one_rank(model: Architecture, names: tuple[str, ...], call: LayerCall, kernel: CoreKernel) -> list[Row]:
    """Return attention over the keys that a rank holds."""
    beside = []
    if model.attention_dropout and model.attention is not Attention.FLASH:
        size_bytes = _scores(call) * dropout_bytes(call)
        beside.append(stream("attention_dropout", Module.CORE, call, (size_bytes, size_bytes)))
    if names == CORE[Attention.FUSED_SOFTMAX] and not softmax_is_fused(call):
        names = CORE[Attention.UNFUSED]
        size_bytes = _scores(call) * WIDENED_SOFTMAX_BYTES
        launches = (WIDENED_SOFTMAX_LAUNCHES, WIDENED_SOFTMAX_LAUNCHES)
        beside.append(stream("softmax_in_fp32", Module.CORE, call, (size_bytes, size_bytes), launches))
    return [kernel.row(name, call) for name in names] + beside


def _times(row: Row, times: float) -> Row:
    """Return a row that takes so many times as long, in as many launches."""
    forward, backward = (one and one._replace(times=one.times * times) for one in (row.forward, row.backward))
    return row._replace(forward=forward, backward=backward)


def _around_ring(
    names: tuple[str, ...], call: LayerCall, kernel: CoreKernel, layout: Layout, times: float
) -> list[Row]:
    """Return attention around a ring: every rank keeps its queries, and keys and values come past.

    Each message travels while the rank attends to the keys that it holds already. Backward, the gradients of keys and
    values travel as well, and once more to return home. Outputs of a rank's pairs are added up in fp32, backward
    gradients of queries, keys and values.

    Source: Liu et al. 2023, arXiv:2310.01889; Transformer Engine, pytorch/attention/dot_product_attention,
    context_parallel.py, flash_attn_fwd_out_correction (one kernel a pair; torch's _SDPAMerger runs several).
    """
    others = call.context_parallel_size - 1
    open_call, needed = replace(call, causal=False), NEEDED_OF_A_PAIR if call.causal else 1.0
    rows = [kernel.row(name, call) for name in names]
    rows += [kernel.row(name, open_call, others * needed) for name in names]
    rows = [_times(row, times) for row in rows] if times != 1.0 else rows
    message = call.tokens * 2 * call.key_value_heads_per_rank * call.head_dim * call.element_bytes
    forward = others * (kernel.kept or call.element_bytes) / call.element_bytes
    hop = traffic(
        "point_to_point",
        Module.CORE,
        message,
        layout.context_hop(),
        Part.CONTEXT_PARALLEL,
        (forward * times, (forward + others + 1) * times),
        behind=Behind(tuple(rows), slows=True),
    )
    met = times * others * (MET_OF_A_PAIR if call.causal else 1.0)
    keys_and_values = 2 * call.key_value_heads_per_rank * call.head_dim
    out, gradients = (
        met * call.tokens * width * (call.element_bytes + 2 * FP32_BYTES)
        for width in (call.attention_width, call.attention_width + keys_and_values)
    )
    sums = stream("sums_of_pairs", Module.CORE, call, (out, gradients), (others * times, 2 * others * times))
    return [*rows, sums, *hop]


def core_rows(
    model: Architecture, names: tuple[str, ...], call: LayerCall, kernel: CoreKernel, layout: Layout
) -> list[Row]:
    """Return attention between its projections, with the scores that it keeps.

    Args:
        model: its switches.
        names: operators of its core.
        call: sizes of the layer.
        kernel: that computes it.
        layout: of the context-parallel ranks.
    """
    call, times = segmented(call)
    kept = _kept_scores(model, call, times)
    times *= 2.0 if model.differential_attention else 1.0
    if call.context_parallel_size > 1 and names:
        rows = _around_ring(names, call, kernel, layout, times)
    else:
        rows = _on_one_rank(model, names, call, kernel)
        rows = [_times(row, times) for row in rows] if times != 1.0 else rows
    return [rows[0]._replace(keeps=(kept,)), *rows[1:]] if rows else []
