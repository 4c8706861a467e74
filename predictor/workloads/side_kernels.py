"""What a layer runs beside its named operators and its sums: kernels that stream memory, so their bytes time them.

Bias additions, dropout, layout copies, rotations, the sums that bias gradients are, the concatenation of the query, key
and value gradients.
"""

from __future__ import annotations

from predictor.costs.operator import Direction
from predictor.costs.operators.fused_swiglu import FUSED_GATE_PASSES
from predictor.costs.operators.swiglu import UNFUSED_PASSES
from predictor.workloads.attention import MASK_BYTES, dropout_bytes
from predictor.workloads.fused import fused_gate
from predictor.workloads.layer_call import LayerCall
from predictor.workloads.measured_kernels import FUSED_ROPE, as_measured
from predictor.workloads.run import FP32_BYTES, TrainingRun
from predictor.workloads.switches import Activation, Ffn, LayerKind, QkNorm
from predictor.workloads.tasks import ADD_PASSES, BACKWARD, FORWARD, Task, in_ffn, operator_task, stream_task
from predictor.workloads.transformer import Transformer

COPY_PASSES = 2


def _of_attention(model: Transformer, kind: LayerKind, call: LayerCall, direction: Direction) -> list[Task]:
    """Return the side kernels of plain attention in both directions."""
    heads = call.tokens * call.attention_width
    keys = call.tokens * call.key_value_heads_per_rank * call.head_dim
    copy_bytes = COPY_PASSES * call.element_bytes
    tasks = [stream_task("context_copy", heads * copy_bytes, call)]
    rotated = model.rotary_fraction if kind.rotates else 0.0
    if 0.0 < rotated < 1.0 and not model.fused_rope:
        tasks.append(stream_task("rope_concatenation", (heads + keys) * copy_bytes, call, launches=2))
    if rotated and model.fused_rope:
        by_bytes = stream_task("rope", (heads + keys) * rotated * copy_bytes, call, launches=2)
        tasks.append(as_measured(model, by_bytes, operator_task(FUSED_ROPE, call, direction)))
    if model.qk_norm is not QkNorm.NONE:
        passes = COPY_PASSES if direction is FORWARD else ADD_PASSES
        tasks.append(stream_task("qk_norm", (heads + keys) * passes * call.element_bytes, call, launches=2))
    if model.attention_output_gate:
        of_gate, launches = (FUSED_GATE_PASSES, 1) if model.fused_side_kernels else (UNFUSED_PASSES, 2)
        size_bytes = heads * of_gate[direction is BACKWARD] * call.element_bytes
        tasks.append(stream_task("attention_output_gate", size_bytes, call, launches=launches))
    return tasks


def _attention_experts(model: Transformer, call: LayerCall, direction: Direction) -> list[Task]:
    """Return the way of tokens to the experts of attention's projections and back: copies, once per expert met."""
    if not model.attention_experts:
        return []
    met = model.num_attention_heads // model.key_value_heads
    passes = COPY_PASSES if direction is FORWARD else ADD_PASSES
    elements = call.tokens * met * 2 * (call.hidden_size + model.key_value_heads * call.head_dim) * passes
    return [stream_task("attention_routing", elements * call.element_bytes, call, launches=4)]


def _head_gate(model: Transformer, call: LayerCall, direction: Direction) -> list[Task]:
    """Return a gate of each head's output: a narrow projection of the layer's input scales what heads made."""
    if not model.attention_head_gate:
        return []
    passes = COPY_PASSES if direction is FORWARD else ADD_PASSES
    elements = call.tokens * (call.hidden_size + passes * call.attention_width)
    return [stream_task("attention_head_gate", elements * call.element_bytes, call, launches=2)]


def _sinks(model: Transformer, call: LayerCall, direction: Direction) -> list[Task]:
    """Return what learned scores add to fused attention: backward, two fp32 numbers a row are summed over all rows.

    Forward a sink is one more term of each row's sum, in registers. Source: OpenAI 2025, gpt-oss model card,
    arXiv:2508.10925, section 2.2; transformers, integrations/flash_attention.py (s_aux).
    """
    if not model.attention_sinks or direction is FORWARD:
        return []
    rows = call.tokens * call.heads_per_rank
    return [stream_task("attention_sinks", rows * 2 * FP32_BYTES, call)]


def _of_mixer(model: Transformer, kind: LayerKind, call: LayerCall, direction: Direction) -> list[Task]:
    """Return the side kernels of a layer's token mixer; those of others than plain attention are their own."""
    if not kind.mixer.is_attention:
        return []
    own = [] if model.latent_attention is not None else _of_attention(model, kind, call, direction)
    own += _sinks(model, call, direction) + _head_gate(model, call, direction)
    return own + _attention_experts(model, call, direction)


def shared_side_kernels(model: Transformer, kind: LayerKind, call: LayerCall, direction: Direction) -> list[Task]:
    """Return the side kernels that run in both directions."""
    tasks = _of_mixer(model, kind, call, direction)
    if model.hidden_dropout:
        fused = model.fused_side_kernels and direction is FORWARD
        size_bytes = MASK_BYTES if fused else dropout_bytes(call)
        elements = kind.branches * call.unsplit_tokens * call.hidden_size
        tasks.append(stream_task("hidden_dropout", elements * size_bytes, call, launches=0 if fused else kind.branches))
    if model.activation is Activation.SQUARED_RELU and kind.ffn is Ffn.DENSE and not model.fused_side_kernels:
        passes = COPY_PASSES if direction is FORWARD else ADD_PASSES  # the square, a kernel behind the ReLU
        square = stream_task("square", call.tokens * call.ffn_width * passes * call.element_bytes, call)
        tasks += in_ffn([square])
    return tasks


def bias_additions(model: Transformer, kind: LayerKind, call: LayerCall) -> list[Task]:
    """Return the additions of the biases behind sums over ranks; others are added by their products."""
    if model.fused_side_kernels:
        return []
    count = (kind.mixer.is_attention and model.biases.of_attention_output) + (
        kind.ffn is not Ffn.NONE and model.biases.of_ffn
    )
    activation = call.unsplit_tokens * call.hidden_size * call.element_bytes
    return [stream_task("bias_additions", count * 2 * activation, call, launches=count)] if count else []


def bias_gradients(model: Transformer, kind: LayerKind, call: LayerCall) -> list[Task]:
    """Return the sums over tokens that the gradients of biases are: two kernels each, one reads all rows."""
    split = whole = launches = 0
    if kind.mixer.is_attention and model.biases.of_attention_output:
        split, whole, launches = call.qkv_width, call.hidden_size, 4
    if kind.ffn is not Ffn.NONE and model.biases.of_ffn:
        split, whole, launches = split + call.ffn_width, whole + call.hidden_size, launches + 4
    size_bytes = (call.tokens * split + call.unsplit_tokens * whole) * call.element_bytes
    return [stream_task("bias_gradients", size_bytes, call, launches=launches)] if launches else []


def qkv_concatenation(model: Transformer, kind: LayerKind, call: LayerCall) -> list[Task]:
    """Return the concatenation of the gradients of queries, keys and values, which one product makes."""
    if not kind.mixer.is_attention or model.latent_attention is not None:
        return []
    return [stream_task("qkv_concatenation", call.tokens * call.qkv_width * 2 * call.element_bytes, call)]


def gate_of_layer(run: TrainingRun, kind: LayerKind, call: LayerCall, direction: Direction) -> list[Task]:
    """Return the gated activation as one kernel, unless another is named."""
    model = run.model
    named = model.layer_operators is not None or kind.ffn is not Ffn.DENSE
    if named or not (model.activation.gated and model.fused_side_kernels):
        return []
    return in_ffn([fused_gate(model, call, (call.tokens, call.ffn_width), direction)])
