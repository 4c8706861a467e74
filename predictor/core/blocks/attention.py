"""Plain attention: queries, keys and values from one projection, rotation, the core, its output's projection."""

from __future__ import annotations

from predictor.core.blocks.mixers import LayerKind
from predictor.core.blocks.token_mixer import Around
from predictor.core.costs.layer_call import LayerCall
from predictor.core.costs.operators.fused_swiglu import FUSED_GATE_PASSES
from predictor.core.costs.operators.swiglu import UNFUSED_PASSES
from predictor.core.kernel_rows import named, product, stream
from predictor.core.rows import COPY_PASSES, FP32_BYTES, Kept, Kind, Matrix, Module, Reads, Role, Row, Split
from predictor.core.workload.architecture import Architecture
from predictor.core.workload.switches import QkNorm
from predictor.core.workload.tasks import ADD_PASSES

FUSED_ROPE = "fused_rope"
PASSES = (COPY_PASSES, ADD_PASSES)  # of a kernel over one activation, forward and backward


def _qkv_projection(model: Architecture, kind: LayerKind, call: LayerCall) -> Row:
    """Return the product of queries, keys and values; key-value heads are copied to have one on each rank."""
    gates = 2 if call.output_gate else 1
    keys = call.key_value_heads_per_rank * call.head_dim / call.qkv_width
    queries = gates * call.heads_per_rank * call.head_dim / call.qkv_width
    kept = call.qkv_width * (1 if model.qk_norm is QkNorm.NONE else 2)
    if call.shared_key_values:  # values are kept beside the keys that they were made with
        kept += call.key_value_heads_per_rank * call.head_dim
    row = product(
        "qkv_projection",
        Module.MIXER,
        "qkv_projection",
        (call.tokens, call.hidden_size, call.qkv_width),
        Split.COLUMN,
        Reads(Role.NORMED, call.unsplit_tokens * call.hidden_size),
        biases=call.qkv_width if model.biases.of_qkv else 0,
        keeps=(Kept(Role.QKV, float(call.tokens * kept * call.element_bytes)),),
        matrix=Matrix.QKV,
        parts=(queries, keys) if call.shared_key_values else (queries, keys, keys),
    )
    return _of_experts(row, model, call, queries * call.qkv_width) if model.attention_experts else row


def _of_experts(row: Row, model: Architecture, call: LayerCall, met_width: float) -> Row:
    """Return a product of queries or of the output with the weights of all experts, of which a token meets some."""
    of_all = model.attention_experts * model.key_value_heads * call.head_dim
    width = row.weights - met_width * call.hidden_size + of_all * call.hidden_size
    return row._replace(weights=int(width))


def _rotation(model: Architecture, kind: LayerKind, call: LayerCall) -> list[Row]:
    """Return the rotation of queries and keys, and their norms."""
    rotated = model.rotary_fraction if kind.rotates else 0.0
    heads = call.tokens * call.attention_width
    keys = call.tokens * call.key_value_heads_per_rank * call.head_dim
    elements = (heads + keys) * call.element_bytes
    rows = []
    if model.qk_norm is not QkNorm.NONE:
        rows.append(
            stream(
                "qk_norm",
                Module.MIXER,
                call,
                (elements * PASSES[0], elements * PASSES[1]),
                (2, 2),
                weights=_qk_norm_parameters(model, call),
            )
        )
    if rotated and model.fused_rope and FUSED_ROPE in model.measured_kernels:
        rows.append(named(FUSED_ROPE, Module.MIXER, call).launched(2, 2))
    elif rotated and model.fused_rope:
        size_bytes = elements * rotated * COPY_PASSES
        rows.append(stream("rope", Module.MIXER, call, (size_bytes, size_bytes), (2, 2)))
    elif rotated:
        rows.append(named("rope", Module.MIXER, call))
        if rotated < 1.0:
            size_bytes = elements * COPY_PASSES
            rows.append(stream("rope_concatenation", Module.MIXER, call, (size_bytes, size_bytes), (2, 2)))
    return rows


def _qk_norm_parameters(model: Architecture, call: LayerCall) -> int:
    """Return the parameters of the norms of queries and keys on one rank; over all heads they are split."""
    if model.qk_norm is QkNorm.PER_HEAD:
        return 2 * call.head_dim * model.norm_width
    if model.qk_norm is not QkNorm.WHOLE:
        return 0
    return (call.heads_per_rank + call.key_value_heads_per_rank) * call.head_dim * model.norm_width


def extras(model: Architecture, call: LayerCall) -> list[Row]:
    """Return the rows of switches of any softmax attention: sinks, a gate of each head, experts of the projections.

    Forward a sink is one more term of each row's sum, in registers; backward two fp32 numbers a row are summed over all
    rows. Source: OpenAI 2025, gpt-oss model card, arXiv:2508.10925, section 2.2; transformers,
    integrations/flash_attention.py (s_aux).
    """
    rows = []
    if model.attention_sinks:
        size_bytes = call.tokens * call.heads_per_rank * 2 * FP32_BYTES
        rows.append(stream("attention_sinks", Module.MIXER, call, (0, size_bytes), (0, 1), weights=call.heads_per_rank))
    if model.attention_head_gate:  # a narrow projection of the layer's input scales the heads' outputs
        forward, backward = (
            call.tokens * (call.hidden_size + passes * call.attention_width) * call.element_bytes for passes in PASSES
        )
        weights = call.heads_per_rank * call.hidden_size
        rows.append(stream("attention_head_gate", Module.MIXER, call, (forward, backward), (2, 2), weights=weights))
    if model.attention_experts:  # copies of tokens, once per expert met, to the projections' experts and back
        met = model.num_attention_heads // model.key_value_heads
        width = 2 * (call.hidden_size + model.key_value_heads * call.head_dim)
        forward, backward = (call.tokens * met * width * passes * call.element_bytes for passes in PASSES)
        router = call.hidden_size * model.attention_experts
        rows.append(stream("attention_routing", Module.MIXER, call, (forward, backward), (4, 4), weights=router))
    return rows


def attention(model: Architecture, kind: LayerKind, call: LayerCall) -> Around:
    """Return plain attention's rows before and behind its core."""
    heads = call.tokens * call.attention_width * call.element_bytes
    size_bytes = call.tokens * call.qkv_width * 2 * call.element_bytes
    before = [
        _qkv_projection(model, kind, call),
        stream("qkv_concatenation", Module.MIXER, call, (0, size_bytes), (0, 1)),
        *_rotation(model, kind, call),
    ]
    copied = heads * COPY_PASSES
    behind = [stream("context_copy", Module.MIXER, call, (copied, copied), kind=Kind.LAYOUT_COPY)]
    if model.attention_output_gate:
        passes, launches = (FUSED_GATE_PASSES, 1) if model.fused_side_kernels else (UNFUSED_PASSES, 2)
        gate = (heads * passes[0], heads * passes[1])
        behind.append(stream("attention_output_gate", Module.MIXER, call, gate, (launches, launches)))
    kept = Kept(Role.CORE, float(heads * (2 if call.output_gate else 1)))
    output = product(
        "attention_output",
        Module.MIXER,
        "attention_output",
        (call.tokens, call.attention_width, call.hidden_size),
        Split.ROW,
        Reads(Role.CORE, call.tokens * call.attention_width, shared=not model.attention_output_gate),
        biases=call.hidden_size if model.biases.of_attention_output else 0,
        matrix=Matrix.ATTENTION_OUTPUT,
    )
    behind[0] = behind[0]._replace(keeps=(kept,))
    if model.attention_experts:
        output = _of_experts(output, model, call, call.attention_width)
    return Around(before, [*behind, output])
