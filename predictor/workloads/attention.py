"""Attention kernels between the two projections, on one rank or around a context-parallel ring."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from predictor.costs.operator import Direction, in_precision
from predictor.costs.operators.mla_attention import KEY_WIDTH, VALUE_WIDTH
from predictor.workloads.layer_call import LayerCall
from predictor.workloads.layout import Layout
from predictor.workloads.switches import Attention, LayerKind
from predictor.workloads.tasks import (
    FORWARD,
    Overlap,
    Part,
    PassTasks,
    Task,
    collective_task,
    operator_task,
    share_of,
    stream_task,
)
from predictor.workloads.transformer import Transformer

GROUPED, LATENT = "grouped_query_attention", "mla_attention"
CORE = {
    Attention.FLASH: ("flash_attention",),
    Attention.FUSED_SOFTMAX: ("attention_scores", "causal_softmax", "attention_values"),
    Attention.UNFUSED: ("attention_scores", "attention_mask", "softmax", "attention_values"),
}
# Megatron-LM's fused softmax takes rows of at most so many keys, and whole groups of so many heads of all samples.
# Source: megatron/model/fused_softmax.py, is_kernel_available; fused_kernels/scaled_upper_triang_masked_softmax.h.
FUSED_SOFTMAX_KEYS = 16384
FUSED_SOFTMAX_HEADS = 4
# Without it scores are widened to fp32, scaled, masked, put through softmax and narrowed; of their bytes those that
# ``attention_mask`` and ``softmax`` in 16 bits do not have. Source: the same file, forward_torch_softmax.
WIDENED_SOFTMAX_BYTES = (2 + 4) + (4 + 4) + 4 + 4 + (4 + 2)
WIDENED_SOFTMAX_LAUNCHES = 3
CORE_OPERATORS = frozenset({GROUPED, LATENT, *(name for names in CORE.values() for name in names)})
# Of a pair of a rank's chunks and another's, one half of the scores is needed where every rank holds one chunk from the
# front of the sequence and one from its back. Source: Brandon et al. 2023, arXiv:2311.09431 (striped attention);
# Megatron-LM's zigzag split, core/utils.py get_batch_on_this_cp_rank.
NEEDED_OF_A_PAIR = 0.5
# Dropout reads and writes the activation and one byte of mask per element.
MASK_BYTES = 1


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

    def task(self, name: str, call: LayerCall, direction: Direction, times: float = 1.0) -> Task:
        """Return the task of one of attention's operators."""
        task = operator_task(name, call, direction, times, self.implementation)
        return task._replace(operator=in_precision(task.operator, self.precision)) if self.precision else task


AS_MEASURED = CoreKernel()


def dropout_bytes(call: LayerCall) -> int:
    """Return the bytes that dropout moves per element."""
    return 2 * call.element_bytes + MASK_BYTES


def core_names(model: Transformer, kind: LayerKind) -> tuple[str, ...]:
    """Return attention's kernels between its projections; none where the layer mixes tokens otherwise.

    Latent attention of other widths than the operator's is plain attention of heads as wide as its queries, keys and
    values on average, which has the same FLOPs (``sized``).
    """
    if not kind.mixer.is_attention:
        return ()
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


@lru_cache(maxsize=1024)
def split_core(names: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[tuple[str, int], ...]]:
    """Return a layer's operators as those of attention's core, and the others with how often each runs."""
    core = tuple(name for name in names if name in CORE_OPERATORS)
    others = Counter(name for name in names if name not in CORE_OPERATORS)
    return core, tuple(others.items())


def segmented(call: LayerCall) -> tuple[LayerCall, float]:
    """Return a call whose samples are the segments that attention stays inside, and how many such calls one is.

    All segments are as long as the mean one: of documents of unequal lengths attention takes longer.
    """
    if not 0 < call.segment < call.sequence_length:
        return (replace(call, segment=0) if call.segment else call), 1.0
    samples = call.micro_batch_size * call.sequence_length / call.segment
    whole = max(1, int(samples))
    return replace(call, micro_batch_size=whole, sequence_length=call.segment, segment=0), samples / whole


def _scores(call: LayerCall) -> int:
    return call.micro_batch_size * call.heads_per_rank * call.sequence_per_rank**2


def _dropout(model: Transformer, call: LayerCall) -> list[Task]:
    if not model.attention_dropout or model.attention is Attention.FLASH:
        return []
    return [stream_task("attention_dropout", _scores(call) * dropout_bytes(call), call)]


def softmax_is_fused(call: LayerCall) -> bool:
    """Return whether Megatron-LM's fused softmax runs on these sizes; otherwise PyTorch's single kernels do."""
    heads = call.micro_batch_size * call.heads_per_rank
    return call.sequence_per_rank <= FUSED_SOFTMAX_KEYS and heads % FUSED_SOFTMAX_HEADS == 0


def _ring(
    names: tuple[str, ...], call: LayerCall, direction: Direction, layout: Layout, kernel: CoreKernel
) -> PassTasks:
    """Return attention around a ring: every rank keeps its queries, and keys and values come past.

    Each message travels while the rank attends to the keys that it holds already. Backward, the gradients of keys and
    values travel as well, and once more to return home.

    Source: Liu et al. 2023, arXiv:2310.01889.
    """
    others = call.context_parallel_size - 1
    own = [kernel.task(name, call, direction) for name in names]
    open_call = replace(call, causal=False)
    needed = NEEDED_OF_A_PAIR if call.causal else 1.0
    passing = [kernel.task(name, open_call, direction, others * needed) for name in names]
    heads = 2 * call.key_value_heads_per_rank * call.head_dim
    message = call.tokens * heads * call.element_bytes
    narrow = (kernel.kept or call.element_bytes) / call.element_bytes
    messages = others * narrow if direction is FORWARD else others * narrow + others + 1
    traffic = collective_task("point_to_point", message, layout.context_hop(), Part.CONTEXT_PARALLEL, messages)
    return PassTasks(own + passing, [Overlap(traffic, own + passing, slows=True)])


def attention_core(
    model: Transformer,
    names: tuple[str, ...],
    call: LayerCall,
    direction: Direction,
    layout: Layout,
    kernel: CoreKernel = AS_MEASURED,
) -> PassTasks:
    """Return attention between its projections, out of a layer's operators; selective recomputation repeats it."""
    core, _ = split_core(names)
    call, times = segmented(call)
    times *= 2.0 if model.differential_attention else 1.0
    if times != 1.0:
        whole = _core(model, core, call, direction, layout, kernel)
        overlaps = [
            overlap._replace(traffic=share_of(overlap.traffic, times), behind=share_of(overlap.behind, times))
            for overlap in whole.overlaps
        ]
        return PassTasks(share_of(whole.tasks, times), overlaps)
    return _core(model, core, call, direction, layout, kernel)


def _core(
    model: Transformer, core: tuple[str, ...], call: LayerCall, direction: Direction, layout: Layout, kernel: CoreKernel
) -> PassTasks:
    """Return attention between its projections over whole samples."""
    if call.context_parallel_size > 1 and core:
        return _ring(core, call, direction, layout, kernel)
    tasks = _dropout(model, call)
    if core == CORE[Attention.FUSED_SOFTMAX] and not softmax_is_fused(call):
        core = CORE[Attention.UNFUSED]
        size_bytes = _scores(call) * WIDENED_SOFTMAX_BYTES
        tasks.append(stream_task("softmax_in_fp32", size_bytes, call, launches=WIDENED_SOFTMAX_LAUNCHES))
    return PassTasks([kernel.task(name, call, direction) for name in core] + tasks, [])
