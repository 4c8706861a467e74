"""The tasks of one transformer layer on one rank, forward and backward, side kernels included.

Side kernels are what a layer runs beside its named operators: bias additions, dropout, layout copies, the sums that
bias gradients are, the concatenation of the query, key and value gradients, and the accumulation of weight gradients
over micro-batches. They stream memory, so their bytes time them.
"""

from __future__ import annotations

from collections import Counter

from predictor.costs.collectives import Topology
from predictor.costs.layer_call import LayerCall
from predictor.costs.operator import Direction
from predictor.workloads.tasks import (
    ADD_PASSES,
    BACKWARD,
    FORWARD,
    Part,
    Task,
    collective_task,
    operator_task,
    stream_task,
)
from predictor.workloads.transformer import Attention, Transformer

ATTENTION_CORE = {
    Attention.FLASH: ("flash_attention",),
    Attention.FUSED_SOFTMAX: ("attention_scores", "causal_softmax", "attention_values"),
    Attention.UNFUSED: ("attention_scores", "attention_mask", "softmax", "attention_values"),
}
COPY_PASSES = 2
# Dropout reads and writes the activation and one byte of mask per element.
MASK_BYTES = 1


def dropout_bytes(call: LayerCall) -> int:
    """Return the bytes that dropout moves per element."""
    return 2 * call.element_bytes + MASK_BYTES


def layer_operators(model: Transformer) -> tuple[str, ...]:
    """Return the named operators of one layer in the order of its forward pass."""
    if model.layer_operators is not None:
        return model.layer_operators
    norm = str(model.normalization)
    rope = ("rope",) if model.rotary_fraction else ()
    attention = (norm, "qkv_projection", *rope, *ATTENTION_CORE[model.attention], "attention_output", "residual_add")
    return (*attention, norm, "ffn_up", "gelu", "ffn_down", "residual_add")


def attention_core(model: Transformer, call: LayerCall, direction: Direction) -> list[Task]:
    """Return attention between its two projections: what selective recomputation runs again."""
    core = {name for names in ATTENTION_CORE.values() for name in names}
    tasks = [operator_task(name, call, direction) for name in layer_operators(model) if name in core]
    if model.attention_dropout and model.attention is not Attention.FLASH:
        scores = call.micro_batch_size * call.heads_per_rank * call.sequence_length**2
        tasks.append(stream_task("attention_dropout", scores * dropout_bytes(call), call))
    return tasks


def _operators(model: Transformer, call: LayerCall, direction: Direction) -> list[Task]:
    """Return everything between a layer's all-reduces: attention's core, then the other operators by count."""
    core = attention_core(model, call, direction)
    inside = {task.name for task in core}
    others = Counter(name for name in layer_operators(model) if name not in inside)
    return core + [operator_task(name, call, direction, times) for name, times in others.items()]


def all_reduces(model: Transformer, given: int | None) -> int:
    """Return the tensor-parallel all-reduces of one pass through a layer."""
    if given is not None:
        return given
    return 1 if model.parallel_residual else 2


def _shared_side_kernels(model: Transformer, call: LayerCall, direction: Direction) -> list[Task]:
    """Return the side kernels that run in both directions."""
    heads = call.tokens * call.hidden_size // call.tensor_parallel_size
    whole = call.tokens * call.hidden_size
    copy_bytes = COPY_PASSES * call.element_bytes
    tasks = [stream_task("context_copy", heads * copy_bytes, call)]
    if 0.0 < model.rotary_fraction < 1.0:
        tasks.append(stream_task("rope_concatenation", 2 * heads * copy_bytes, call, launches=2))
    if model.hidden_dropout:
        fused = model.fused_side_kernels and direction is FORWARD
        size_bytes = MASK_BYTES if fused else dropout_bytes(call)
        tasks.append(stream_task("hidden_dropout", 2 * whole * size_bytes, call, launches=0 if fused else 2))
    return tasks


def forward_tasks(model: Transformer, call: LayerCall, group: Topology) -> list[Task]:
    """Return one layer's forward pass; row-parallel outputs are summed over the tensor-parallel group."""
    activation = call.tokens * call.hidden_size * call.element_bytes
    tasks = _operators(model, call, FORWARD) + _shared_side_kernels(model, call, FORWARD)
    if model.biases and not model.fused_side_kernels:
        tasks.append(stream_task("bias_additions", 2 * 2 * activation, call, launches=2))
    syncs = all_reduces(model, model.forward_all_reduces)
    return tasks + collective_task("all_reduce", activation, group, Part.TENSOR_PARALLEL, syncs)


def backward_tasks(model: Transformer, call: LayerCall, group: Topology, accumulated: float) -> list[Task]:
    """Return one layer's backward pass without recomputation.

    Args:
        model: the transformer.
        call: sizes of one micro-batch on one rank.
        group: the tensor-parallel group; the gradients of column-parallel inputs are summed over it.
        accumulated: share of the micro-batches whose weight gradients are added to earlier ones.
    """
    tp = call.tensor_parallel_size
    activation = call.tokens * call.hidden_size * call.element_bytes
    tasks = _operators(model, call, BACKWARD) + _shared_side_kernels(model, call, BACKWARD)
    tasks.append(stream_task("qkv_concatenation", 3 * activation // tp * 2, call))
    added = model.layer_parameters(tp) * ADD_PASSES * call.element_bytes
    tasks.append(stream_task("gradient_accumulation", added * accumulated, call, launches=0))
    if model.biases:
        width = (3 * call.hidden_size + call.ffn_hidden_size) // tp + 2 * call.hidden_size
        tasks.append(stream_task("bias_gradients", call.tokens * width * call.element_bytes, call, launches=8))
    syncs = all_reduces(model, model.backward_all_reduces)
    return tasks + collective_task("all_reduce", activation, group, Part.TENSOR_PARALLEL, syncs)
