"""The activations that a forward pass keeps for the backward pass, in bytes on one GPU, tensor by tensor.

For a GPT layer without biases in flash attention this is the sum of Korthikanti et al. 2022, arXiv:2205.05198, sections
4.1 to 4.2: s·b·h·(10 + 24/t + 5·a·s/(h·t)), and s·b·h/t·(34 + 5·a·s/h) with sequence parallelism, with one difference:
they count a key-value pair per query head, and this counts what the architecture has.
"""

from __future__ import annotations

from collections.abc import Iterable

from predictor.timeline.schedules import SCHEDULES, Schedule, peak_in_flight
from predictor.workloads.attention import MASK_BYTES
from predictor.workloads.experts import routed_tokens
from predictor.workloads.layer import sized
from predictor.workloads.layer_call import LayerCall
from predictor.workloads.layout import Layout
from predictor.workloads.run import FP32_BYTES, Recompute, TrainingRun
from predictor.workloads.transformer import Attention, LayerKind, Normalization, Transformer


def _norms(model: Transformer) -> int:
    """Return the activations that a layer's norms keep: their inputs, and where RMSNorm is unfused its product too."""
    inputs = 1 if model.parallel_residual else 2
    inputs += 2 if model.post_norms else 0
    return inputs * (2 if model.normalization is Normalization.RMS_NORM else 1)


def _scores(model: Transformer, call: LayerCall) -> float:
    """Return the bytes that attention keeps between its projections, queries, keys, values and output aside.

    Softmax's output; with dropout its mask and its output as well. Flash attention keeps one fp32 sum per row instead.
    """
    rows = call.micro_batch_size * call.heads_per_rank * call.sequence_per_rank
    if model.attention is Attention.FLASH:
        return rows * float(FP32_BYTES)
    per_score = call.element_bytes
    if model.attention_dropout:
        per_score += MASK_BYTES + call.element_bytes
    return float(rows * call.sequence_per_rank * per_score)


def _attention(model: Transformer, call: LayerCall) -> float:
    """Return the bytes that attention keeps without its scores: projections' inputs and outputs, and masks."""
    queries = call.qkv_width * (2 if model.qk_norm else 1)
    split = call.tokens * (queries + call.attention_width) * call.element_bytes
    unsplit = call.unsplit_tokens * call.hidden_size
    return split + unsplit * (call.element_bytes + (MASK_BYTES if model.hidden_dropout else 0))


def _inner(model: Transformer, tokens: float, width: int, element_bytes: int) -> float:
    """Return the bytes that an FFN keeps between its matrices: the activation's inputs and its output."""
    tensors = 2
    if model.activation.gated:
        tensors = 3 if model.fused_side_kernels else 4  # unfused, SiLU's own output is kept for the product
    return tokens * width * tensors * element_bytes


def _ffn(model: Transformer, call: LayerCall) -> float:
    unsplit = call.unsplit_tokens * call.hidden_size
    mask = MASK_BYTES if model.hidden_dropout else 0
    return _inner(model, call.tokens, call.ffn_width, call.element_bytes) + unsplit * (call.element_bytes + mask)


def _experts(model: Transformer, call: LayerCall, layout: Layout) -> float:
    """Return the bytes that experts keep: tokens in the order of their experts, and what those made of them."""
    experts = model.experts
    assert experts is not None
    tp, routed = call.tensor_parallel_size, routed_tokens(experts, call, layout)
    kept = _inner(model, routed, experts.expert_ffn_hidden_size // tp, call.element_bytes)
    kept += 2 * routed * call.hidden_size * call.element_bytes
    kept += call.tokens * experts.num_experts * FP32_BYTES
    kept += _inner(model, call.tokens, experts.shared_expert_ffn_hidden_size // tp, call.element_bytes)
    return kept + call.unsplit_tokens * call.hidden_size * call.element_bytes


def _whole_layer(run: TrainingRun, kind: LayerKind) -> float:
    """Return the bytes that one layer keeps where nothing is recomputed."""
    model, call = run.model, sized(run, kind)
    norms = _norms(model) * call.unsplit_tokens * call.hidden_size * call.element_bytes
    ffn = _experts(model, call, run.layout) if kind.has_experts else _ffn(model, call)
    return norms + _attention(model, call) + _scores(model, call) + ffn


def kept_bytes(run: TrainingRun, kind: LayerKind) -> float:
    """Return the bytes that one layer keeps from a micro-batch's forward to its backward pass."""
    if run.recompute is Recompute.FULL:
        call = run.call()
        split = run.partition_activations and not run.sequence_parallel
        tokens = call.tokens / call.tensor_parallel_size if split else call.unsplit_tokens
        return float(tokens * call.hidden_size * call.element_bytes)
    whole = _whole_layer(run, kind)
    return whole - _scores(run.model, sized(run, kind)) if run.recompute is Recompute.SELECTIVE else whole


def embedding_bytes(run: TrainingRun) -> float:
    """Return the bytes that the embedding keeps per micro-batch: its dropout's mask."""
    call = run.call()
    return float(call.unsplit_tokens * call.hidden_size * MASK_BYTES) if run.model.hidden_dropout else 0.0


def head_bytes(run: TrainingRun) -> float:
    """Return the bytes of the last stage's end: the norm's and the projection's input, logits and fp32 logits.

    Source: Korthikanti et al. 2022, section 4.3, and Megatron-LM's cross entropy, which keeps its fp32 softmax.
    """
    call = run.call()
    inputs = 2 * call.unsplit_tokens * call.hidden_size * call.element_bytes
    logits = call.tokens * call.vocab_per_rank
    widened = FP32_BYTES if call.element_bytes != FP32_BYTES else 0
    return float(inputs + logits * (call.element_bytes + widened))


def deferred_head_bytes(run: TrainingRun) -> float:
    """Return what of the model's end waits for the gradients of its weights: their inputs and 16-bit gradients."""
    call = run.call()
    inputs = call.unsplit_tokens * call.hidden_size * call.element_bytes
    return float(inputs + call.tokens * call.vocab_per_rank * call.element_bytes)


def held_heads(schedule: Schedule, in_flight: int, head: float, deferred: float) -> float:
    """Return the bytes of the model's end on the last stage, of all micro-batches that have not left it.

    1F1B, interleaved or not, goes back at once. AFAB keeps all of them; ZB-H1 keeps what the gradients of weights need.

    Args:
        schedule: of the pipeline.
        in_flight: micro-batches that the last stage holds at most.
        head: ``head_bytes`` of one.
        deferred: ``deferred_head_bytes`` of one.
    """
    if schedule.splits_backward:
        return head + (in_flight - 1) * deferred
    return head if schedule.chunks else in_flight * head


def held_head_bytes(run: TrainingRun) -> float:
    """Return ``held_heads`` of a run."""
    schedule, stages = SCHEDULES[run.schedule], run.layout.pipeline_parallel_size
    in_flight = peak_in_flight(schedule, stages - 1, stages, run.num_micro_batches, 1)
    return held_heads(schedule, in_flight, head_bytes(run), deferred_head_bytes(run))


def gathered_edge_bytes(run: TrainingRun) -> float:
    """Return the embedding's, or the output projection's, weights where ZeRO-3 gathers them."""
    if run.zero_stage < 3:
        return 0.0
    return float(run.model.embedding_parameters(run.layout.tensor_parallel_size) * run.element_bytes)


def working_bytes(run: TrainingRun, kinds: Iterable[LayerKind]) -> float:
    """Return what exists while one layer is computed: its recomputed activations, and weights gathered for it."""
    worst = 0.0
    for kind in kinds:
        again = 0.0
        if run.recompute is Recompute.FULL:
            again = _whole_layer(run, kind)
        elif run.recompute is Recompute.SELECTIVE:
            again = _scores(run.model, sized(run, kind))
        if run.zero_stage == 3:
            ahead = 2 if run.overlap_parameter_gather else 1
            again += ahead * run.layer_parameters(kind) * run.element_bytes
        worst = max(worst, again)
    return worst
